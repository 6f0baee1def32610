"""Which rows of a Delta table's files are deleted: the deletion vectors of a version, as long as they are needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import deltalake
import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from streaming_source.connectors.delta.commits import path_in_table
from streaming_source.data_files.file import DeletedRows
from streaming_source.exceptions import UnsupportedOperationError


class DeletionVectors:
    """The deleted rows of files, by version and path in the table; each stays until it is released.

    `title` is the table in messages, `open_table` loads a version. Called by several threads.
    """

    def __init__(self, title: str, open_table: Callable[[int], deltalake.DeltaTable]) -> None:
        self._title, self._open_table = title, open_table
        self._loaded: dict[int, dict[str, DeletedRows]] = {}
        # Held for no I/O: who releases a file must not wait for a store.
        self._guard = threading.Lock()
        self._reading = threading.Lock()

    def __len__(self) -> int:
        with self._guard:
            return sum(map(len, self._loaded.values()))

    def load(self, version: int, table: deltalake.DeltaTable) -> Mapping[str, DeletedRows]:
        """Load those of all files of a version, which is opened as `table`. O(their rows)."""
        found = self._read(version, table)
        with self._guard:
            self._loaded[version] = dict(found)
        return found

    def of(self, version: int, path: str) -> DeletedRows | None:
        """Return the deleted rows of a file; None if there are none. O(1) where the version is loaded."""
        if (known := self._known(version, path)) is not None:
            return known
        # One thread reads a version, others that need it wait for that.
        with self._reading:
            if (known := self._known(version, path)) is not None:
                return known
            found = self._read(version, self._open_table(version))
            with self._guard:
                if version in self._loaded:
                    # One that was released is read again by itself; after a restart all that is in work is needed.
                    found = {path: found[path]} if path in found else {}
                self._loaded.setdefault(version, {}).update(found)
            return found.get(path)

    def release(self, version: int, path: str) -> None:
        """Forget a file, which was read to its end. O(1)."""
        with self._guard:
            loaded = self._loaded.get(version, {})
            loaded.pop(path, None)
            if not loaded:
                self._loaded.pop(version, None)

    def retain(self, paths: Iterable[str]) -> None:
        """Forget all files but these. O(paths), where there are deleted rows at all."""
        with self._guard:
            known = {path for loaded in self._loaded.values() for path in loaded}
        if not known:
            return
        needed = known.intersection(paths)
        with self._guard:
            left = {
                version: {path: rows for path, rows in loaded.items() if path in needed}
                for version, loaded in self._loaded.items()
            }
            self._loaded = {version: loaded for version, loaded in left.items() if loaded}

    def _known(self, version: int, path: str) -> DeletedRows | None:
        with self._guard:
            return self._loaded.get(version, {}).get(path)

    def _read(self, version: int, table: deltalake.DeltaTable) -> dict[str, DeletedRows]:
        found: dict[str, DeletedRows] = {}
        if "deletionVectors" not in (table.protocol().reader_features or ()):
            return found
        base = path_in_table(table.table_uri).rstrip("/") + "/"
        try:
            for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
                for path, is_left in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
                    deleted = np.flatnonzero(~is_left.values.to_numpy(zero_copy_only=False))
                    found[path_in_table(path).removeprefix(base)] = DeletedRows.of_rows(deleted)
        except DeltaError as error:
            raise UnsupportedOperationError(
                f"{self._title}, version {version}: its deletion vectors cannot be read ({error}). Read it with "
                "spark.readStream.format('delta'), or purge them (REORG TABLE ... APPLY (PURGE))"
            ) from None
        return found
