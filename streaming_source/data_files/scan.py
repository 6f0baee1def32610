"""Scanning a file for its blocks of event times, a part at a time."""

from __future__ import annotations

import pyarrow as pa

from alignment.timestamps import TimestampAssigner
from alignment.watermarks import Int64Array
from streaming_source.data_files.file import Block, FileBlocks, FileRows, SeekPoint, StoredFile
from streaming_source.data_files.formats.base import ALL_ROWS, FileFormat


class FileScan:
    """Finds the blocks of one file, in their order; `rows` have been found, all of the file if it `is_done`.

    The file is not open between two parts. One that can only be read from its beginning is scanned in one part.
    """

    def __init__(
        self, file_format: FileFormat, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner
    ) -> None:
        self._format, self._file, self._schema, self._assigner = file_format, file, schema, assigner
        self._at: int | None = None
        self.rows = 0
        self.is_done = False

    def advance(self, enough: int) -> tuple[FileBlocks, list[Int64Array]]:
        """Return the next blocks: of so many rows or a few more, or up to the end of the file; and their event times.

        After an error it goes on where it was. Holds one block of the file. Of a file that is scanned in one part, and
        is large, there are no event times.
        """
        rows, blocks, at = self.rows, [], None
        kept: list[Int64Array] = []
        point = None if self._at is None else SeekPoint(rows, self._at)
        unread = FileRows(self._file, rows, ALL_ROWS, point)
        with self._format._scanned(unread, self._schema, self._assigner) as (source, found):
            for times, offset in found:
                blocks.append(Block.of(times, offset))
                rows += times.size
                if rows - self.rows <= 2 * enough:
                    kept.append(times)
                if source.seeks and source.next_at is not None and rows - self.rows >= enough:
                    at = source.next_at
                    break
            part = FileBlocks.of(blocks, seeks=source.seeks, columns=source.columns)
        self.rows, self._at, self.is_done = rows, at, at is None
        return part, kept if len(kept) == len(blocks) else []
