"""How many threads fetch the splits of one reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streaming_source.exceptions import OptionError

__all__ = ["Fetching"]


@dataclass(frozen=True, slots=True)
class Fetching:
    """A choice of threads: what a `Source` says of how its splits are best read.

    Attributes
    ----------
    kind
        `single_thread`, `fixed_size`, `per_split` or `adaptive`.
    threads
        How many, or for `adaptive` how many at most; None for those that need no number.

    Raises
    ------
    OptionError
        If the number is below 1.
    """

    kind: Literal["single_thread", "fixed_size", "per_split", "adaptive"]
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"threads = {self.threads}: a reader fetches with at least 1 thread")

    @classmethod
    def single_thread(cls) -> Fetching:
        """One thread and one `SplitReader` for all splits: where one connection serves them all."""
        return cls("single_thread")

    @classmethod
    def fixed_size(cls, threads: int) -> Fetching:
        """So many threads; a hash of its id says which of them reads a split, the same in every process."""
        return cls("fixed_size", threads)

    @classmethod
    def per_split(cls) -> Fetching:
        """A thread for each split: where a fetch waits for one split and must not make others wait."""
        return cls("per_split")

    @classmethod
    def adaptive(cls, max_threads: int = 8) -> Fetching:
        """As many as keep the reader busy, by measured rates: where a fetch may be fast or slow."""
        return cls("adaptive", max_threads)
