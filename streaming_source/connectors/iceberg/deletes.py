"""Position deletes of a snapshot: which of its delete files are about a data file, and the rows that they delete."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
from pyarrow import fs
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry

from streaming_source.data_files.file import DeletedRows
from streaming_source.exceptions import DataLossError, UnsupportedOperationError

_PATH_ID: Final = 2147483546
"""The id of the column `file_path` of delete files."""

_FIX: Final = (
    "Rewrite the table's data files (CALL system.rewrite_data_files), and start with a snapshot after that, or read it "
    "with spark.readStream.format('iceberg') and withWatermark"
)


def partition_key(spec_id: int, partition: Any) -> str:
    """A short name of a partition; files of different ones have the same one in a few of 2^32 cases, which is safe."""
    return f"{spec_id}:{zlib.crc32(repr(partition).encode()):x}"


@dataclass(frozen=True, slots=True)
class _DeleteFile:
    """Rows of some data files, all from `low` to `high` by their locations; those added after it are not in it."""

    location: str
    sequence: int
    low: bytes
    high: bytes | None

    def is_about(self, location: bytes, sequence: int) -> bool:
        return self.sequence >= sequence and self.low <= location and (self.high is None or location <= self.high)


class DeleteFiles:
    """The delete files of a snapshot by partition; made of the entries of its manifests of deletes.

    An `UnsupportedOperationError` names what is not understood: equality deletes, deletion vectors.
    """

    def __init__(self, title: str, snapshot_id: int, entries: Iterable[ManifestEntry]) -> None:
        self._title, self._snapshot_id = title, snapshot_id
        self._files: dict[str, list[_DeleteFile]] = defaultdict(list)
        for entry in entries:
            file = entry.data_file
            if file.content == DataFileContent.EQUALITY_DELETES:
                raise self._refused(file.file_path, "equality deletes (as Flink's upserts write them)")
            if file.file_format.value == "PUFFIN":
                raise self._refused(file.file_path, "deletion vectors (of format version 3)")
            if file.file_format != FileFormat.PARQUET:
                raise self._refused(file.file_path, f"position deletes in {file.file_format.value}")
            low, high = (file.lower_bounds or {}).get(_PATH_ID), (file.upper_bounds or {}).get(_PATH_ID)
            one = _DeleteFile(file.file_path, entry.sequence_number or 0, low or b"", high)
            self._files[partition_key(file.spec_id, file.partition)].append(one)

    def __bool__(self) -> bool:
        return bool(self._files)

    def about(self, location: str, key: str, sequence: int) -> list[str]:
        """Return the locations of the delete files that may have rows of a data file."""
        path = location.encode()
        return [one.location for one in self._files.get(key, ()) if one.is_about(path, sequence)]

    def read(self, files: fs.FileSystem, location: str, key: str, sequence: int) -> DeletedRows | None:
        """Read which rows of a data file are deleted; None if there are none."""
        rows = [np.empty(0, np.int64)]
        for one in self.about(location, key, sequence):
            try:
                found = pq.read_table(one, filesystem=files, columns=["pos"], filters=[("file_path", "=", location)])
            except FileNotFoundError:
                raise DataLossError(
                    f"{self._title}: the delete file {one} of snapshot {self._snapshot_id} was deleted: the snapshot "
                    "has expired. Start with a new checkpointLocation, which reads the table as it is now"
                ) from None
            rows.append(found["pos"].to_numpy())
        numbers = np.concatenate(rows)
        return DeletedRows.of_rows(numbers) if numbers.size else None

    def _refused(self, location: str, what: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            f"{self._title}, snapshot {self._snapshot_id}, has {what}, which are not read: {location}. {_FIX}"
        )
