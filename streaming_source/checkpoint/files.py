"""The files of a checkpoint, on any file system: what there is, and what there is not."""

from __future__ import annotations

import os
from typing import Final

from pyarrow import ArrowInvalid, fs

from streaming_source.exceptions import CheckpointError
from streaming_source.from_data import as_json

RESTORE: Final = "restore it from a copy of the checkpoint"
"""The advice for a damaged file."""


class CheckpointFiles:
    """The files below a `checkpointLocation`; it need not exist.

    `checkpoint` is a local path, in which `~` is the home, or a URI of a file system that Arrow opens (`s3a://`,
    `hdfs://`). `opened` is its file system and its path there, if the caller has opened it.
    """

    def __init__(self, checkpoint: str, opened: tuple[fs.FileSystem, str] | None = None) -> None:
        self.checkpoint = checkpoint
        self.filesystem: fs.FileSystem = fs.LocalFileSystem()
        self.root = os.path.expanduser(checkpoint).rstrip("/")
        if opened is not None:
            self.filesystem, self.root = opened
        elif "://" in checkpoint or checkpoint.startswith("file:"):
            try:
                # `s3a` is Hadoop's name for `s3`.
                self.filesystem, self.root = fs.FileSystem.from_uri(checkpoint.replace("s3a:", "s3:", 1))
            except (ArrowInvalid, NotImplementedError) as error:
                raise CheckpointError(
                    f"{checkpoint}: Arrow knows no such file system; copy it to a local folder: {error}"
                ) from None

    @property
    def is_remote(self) -> bool:
        """True if reading a file takes requests to a store."""
        return bool(self.filesystem.type_name != "local")

    def query_id(self) -> str | None:
        """Return the id of the query that uses the checkpoint; None before one has started."""
        text = self.text("metadata")
        try:
            return None if text is None else str(as_json(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.checkpoint}/metadata is damaged ({error!r}); {RESTORE}") from None

    def list_folder(self, folder: str) -> dict[str, fs.FileInfo] | None:
        """Return what a folder has, by name; None if there is no such folder. One listing."""
        try:
            found = self.filesystem.get_file_info(fs.FileSelector(f"{self.root}/{folder}"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return {info.base_name: info for info in sorted(found, key=lambda info: str(info.base_name))}

    def numbered(self, folder: str) -> dict[int, fs.FileInfo] | None:
        """Return the entries of a folder whose names are numbers, in order; None if there is no such folder."""
        found = self.list_folder(folder)
        return None if found is None else dict(sorted((int(name), found[name]) for name in found if name.isdigit()))

    def bytes_of(self, name: str) -> bytes | None:
        """Read a file; None if there is none of that name. A `CheckpointError` if it is no file, as a pipe is none."""
        try:
            if not self.is_remote and self.filesystem.get_file_info(f"{self.root}/{name}").type is fs.FileType.Unknown:
                raise CheckpointError(f"{self.checkpoint}/{name} is no file; {RESTORE}")
            with self.filesystem.open_input_stream(f"{self.root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def text(self, name: str) -> str | None:
        """Read a file of text; None if there is none of that name. A `CheckpointError` if it is no text."""
        data = self.bytes_of(name)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.checkpoint}/{name} is damaged: byte {error.start} is not of a text; {RESTORE}"
            ) from None
