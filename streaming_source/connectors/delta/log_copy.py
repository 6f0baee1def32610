"""A table's log without what `deltalake` stumbles over and Spark does not, in a folder of its own.

`deltalake` decodes the name of a table's folder twice, so that another table may be read; it insists on the checkpoint
that `_last_checkpoint` names, and on fields that a writer may have left out.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from streaming_source.connectors.delta.commits import whole_checkpoints


def open_copy(
    filesystem: fs.FileSystem, root: str, load: Callable[[str], deltalake.DeltaTable]
) -> deltalake.DeltaTable:
    """Load a table from a copy of its log, which lasts as long as what `load` returns of its folder.

    The copy has all commits, and those checkpoints that are whole. O(files of the log), each of which is read.
    """
    folder = TemporaryDirectory(prefix="delta-log-")
    try:
        _copy(filesystem, root, Path(folder.name))
        table = load(folder.name)
    except BaseException:
        folder.cleanup()
        raise
    weakref.finalize(table, folder.cleanup)
    return table


def _copy(filesystem: fs.FileSystem, root: str, folder: Path) -> None:
    log = folder / "_delta_log"
    log.mkdir()
    listed = filesystem.get_file_info(fs.FileSelector(f"{root}/_delta_log", allow_not_found=True))
    found = {entry.base_name: entry for entry in listed}
    for name, entry in found.items():
        if name.endswith(".json") and name.removesuffix(".json").isdigit():
            (log / name).write_bytes(b"\n".join(_mended(_content(filesystem, entry.path))))
    for names in whole_checkpoints(found).values():
        if all(_is_readable(filesystem, found[name].path) for name in names):
            for name in names:
                (log / name).write_bytes(_content(filesystem, found[name].path))
    if "_sidecars" in found:
        fs.copy_files(found["_sidecars"].path, str(log / "_sidecars"), filesystem, fs.LocalFileSystem())
    if filesystem.type_name == "local" and found:
        # Deletion vectors lie beside the data files, or in folders of their own.
        for path in Path(root).iterdir():
            if path.name != log.name and (path.is_dir() or path.name.startswith("deletion_vector_")):
                (folder / path.name).symlink_to(path)


def _content(filesystem: fs.FileSystem, path: str) -> bytes:
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def _mended(commit: bytes) -> Iterator[bytes]:
    """The actions of a commit, where a file has values of its partition, if none."""
    for line in commit.splitlines():
        if b'"add"' not in line or b'"partitionValues"' in line:
            yield line
            continue
        try:
            action = json.loads(line)
            action["add"].setdefault("partitionValues", {})
        except (ValueError, LookupError, TypeError, AttributeError):
            # No added file, or nothing that can be read at all, which is said where it is read.
            yield line
        else:
            yield json.dumps(action).encode()


def _is_readable(filesystem: fs.FileSystem, path: str) -> bool:
    """Return whether a checkpoint has its footer: one that is being written, or was cut, has none."""
    if not path.endswith(".parquet"):
        return True
    try:
        with filesystem.open_input_file(path) as file:
            pq.read_metadata(file)
    except pa.ArrowInvalid:
        return False
    return True
