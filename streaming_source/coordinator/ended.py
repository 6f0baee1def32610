"""The enumerator of a bounded source that was read to its end: it finds nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from alignment.shown import log_of
from streaming_source.api import SplitEnumerator, SplitEnumeratorContext
from streaming_source.api.split import SplitT

_log = log_of(__name__)

CheckpointT = TypeVar("CheckpointT")


@dataclass(eq=False, frozen=True)
class EndedEnumerator(SplitEnumerator[SplitT, CheckpointT]):
    """Has no split, and keeps the checkpoint of the source's own enumerator.

    So a restart after the end of a source neither lists nor opens it: what was read may have been deleted.
    """

    context: SplitEnumeratorContext[SplitT]
    checkpoint: CheckpointT
    name: str

    def start(self) -> None:
        """Log that nothing is discovered any more."""
        _log.warning(
            "%s: this bounded source was read to its end by an earlier run. What has come since is not part of this "
            "query, and is not read; to read it use a new checkpointLocation, with or without bounded",
            self.name,
        )

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        self.context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[SplitT], subtask_id: int) -> None:
        """It has given none."""

    def snapshot_state(self, checkpoint_id: int) -> CheckpointT:
        return self.checkpoint
