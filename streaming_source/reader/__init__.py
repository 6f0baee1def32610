"""What connectors' readers are built on (FLIP-27)."""

from streaming_source.reader.adaptive import AdaptiveFetcherManager
from streaming_source.reader.base import SourceReaderBase
from streaming_source.reader.choice import create_fetcher_manager
from streaming_source.reader.fetcher import SplitFetcher
from streaming_source.reader.managers import (
    FixedSizeSplitFetcherManager,
    PerSplitFetcherManager,
    SingleThreadFetcherManager,
    SplitFetcherManager,
)
from streaming_source.reader.queue import ElementQueue
from streaming_source.reader.rate import RateLimiter, RecordsPerSecond
from streaming_source.reader.tasks import SplitFetcherTask

__all__ = [
    "AdaptiveFetcherManager",
    "ElementQueue",
    "FixedSizeSplitFetcherManager",
    "PerSplitFetcherManager",
    "RateLimiter",
    "RecordsPerSecond",
    "SingleThreadFetcherManager",
    "SourceReaderBase",
    "SplitFetcher",
    "SplitFetcherManager",
    "SplitFetcherTask",
    "create_fetcher_manager",
]
