"""The reader of a source, and the fetcher manager that it is made of."""

from __future__ import annotations

from typing import Any, TypeVar

from streaming_source.api import Fetching, Source, SourceReader, SourceReaderContext, SourceSplit
from streaming_source.reader.adaptive import AdaptiveFetcherManager
from streaming_source.reader.base import SourceReaderBase
from streaming_source.reader.managers import (
    FixedSizeSplitFetcherManager,
    PerSplitFetcherManager,
    SingleThreadFetcherManager,
    SplitFetcherManager,
    SplitReaderSupplier,
)

__all__ = ["create_base_reader", "create_fetcher_manager", "create_reader"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


def create_reader(source: Source[SplitT, Any], context: SourceReaderContext) -> SourceReader[SplitT]:
    """The reader of one micro-batch: the source's own where it overrides `Source.create_reader`, else the base one."""
    if type(source).create_reader is Source.create_reader:
        return create_base_reader(source, context)
    return source.create_reader(context)


def create_base_reader(source: Source[SplitT, Any], context: SourceReaderContext) -> SourceReaderBase[SplitT, Any]:
    """The base reader over a source's `create_split_reader`, `create_record_emitter`, `fetching` and `end_of_stream`.

    An override of `Source.create_reader` may begin with it.
    """
    manager = create_fetcher_manager(source.fetching, lambda: source.create_split_reader(context))
    emitter = source.create_record_emitter(context)
    return SourceReaderBase(manager, emitter, context, end_of_stream=source.end_of_stream)


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
