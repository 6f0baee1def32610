"""The fetcher manager that a source asks for."""

from __future__ import annotations

from typing import Any, TypeVar

from streaming_source.api import Fetching, SourceSplit
from streaming_source.reader.adaptive import AdaptiveFetcherManager
from streaming_source.reader.managers import (
    FixedSizeSplitFetcherManager,
    PerSplitFetcherManager,
    SingleThreadFetcherManager,
    SplitFetcherManager,
    SplitReaderSupplier,
)

__all__ = ["create_fetcher_manager"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


def create_fetcher_manager(
    fetching: Fetching, split_reader_supplier: SplitReaderSupplier[SplitT]
) -> SplitFetcherManager[SplitT, Any]:
    """The manager of a choice; no thread is started before there are splits."""
    if fetching.kind == "per_split":
        return PerSplitFetcherManager(split_reader_supplier)
    if fetching.kind == "fixed_size":
        return FixedSizeSplitFetcherManager(split_reader_supplier, fetching.threads or 1)
    if fetching.kind == "adaptive":
        return AdaptiveFetcherManager(split_reader_supplier, max_fetchers=fetching.threads or 1)
    return SingleThreadFetcherManager(split_reader_supplier)
