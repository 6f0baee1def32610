"""Which rows of a Delta table's files are deleted: the deletion vectors of a version, as long as they are needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from urllib.parse import unquote

import deltalake
import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from streaming_source.data_files.file import DeletedRows
from streaming_source.exceptions import UnsupportedOperationError

__all__ = ["DeletionVectors"]


class DeletionVectors:
    """The deleted rows of files, by version and path in the table; each stays until it is released.

    `title` is the table in messages, `open_table` loads a version. Called by several threads.
    """

    def __init__(self, title: str, open_table: Callable[[int], deltalake.DeltaTable]) -> None:
        self._title, self._open_table = title, open_table
        self._loaded: dict[int, dict[str, DeletedRows]] = {}
        self._loading = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self._loaded.values()))

    def load(self, version: int, table: deltalake.DeltaTable) -> Mapping[str, DeletedRows]:
        """Load those of all files of a version, which is opened as `table`. O(their rows)."""
        found = self._read(version, table)
        with self._loading:
            self._loaded[version] = dict(found)
        return found

    def of(self, version: int, path: str) -> DeletedRows | None:
        """Return the deleted rows of a file; None if there are none. O(1) where the version is loaded."""
        with self._loading:
            loaded = self._loaded.setdefault(version, {})
            if path not in loaded:
                # After a restart all that is in work is needed; one that was released is read again by itself.
                found = self._read(version, self._open_table(version))
                if loaded:
                    found = {path: found[path]} if path in found else {}
                loaded |= found
            return loaded.get(path)

    def release(self, version: int, path: str) -> None:
        """Forget a file, which was read to its end."""
        with self._loading:
            loaded = self._loaded.get(version, {})
            loaded.pop(path, None)
            if not loaded:
                self._loaded.pop(version, None)

    def _read(self, version: int, table: deltalake.DeltaTable) -> dict[str, DeletedRows]:
        found: dict[str, DeletedRows] = {}
        if "deletionVectors" not in (table.protocol().reader_features or ()):
            return found
        base = unquote(table.table_uri).rstrip("/") + "/"
        try:
            for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
                for path, kept in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
                    deleted = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
                    found[unquote(path).removeprefix(base)] = DeletedRows.of_rows(deleted)
        except DeltaError as error:
            raise UnsupportedOperationError(
                f"{self._title}, version {version}: its deletion vectors cannot be read ({error}). Read it with "
                "spark.readStream.format('delta'), or purge them (REORG TABLE ... APPLY (PURGE))"
            ) from None
        return found
