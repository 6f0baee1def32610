"""Directories beside the data, which options name: `lateLocation`, `alignmentLocation`, `reportLocation`."""

from __future__ import annotations

from typing import Any

from streaming_source.api import Source
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, Root, StorageOptions

__all__ = ["place_of"]


def place_of(source: Source[Any, Any], uri: str) -> Root:
    """A place that is opened with the `storage.*` options and credentials of the source, where it has some."""
    storage = getattr(source, "storage", NO_STORAGE_OPTIONS)
    return storage.at(uri) if isinstance(storage, StorageOptions) else Root(uri)
