"""The needs of `deltalake`: options of a file system by its names, and a log without what it stumbles over.

It decodes the name of a table's folder twice, so that another table may be read; it insists on the checkpoint that
`_last_checkpoint` names, and on fields that a writer may have left out. Such a log is copied to a folder of its own.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from streaming_source.connectors.delta.commits import whole_checkpoints
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import OptionError
from streaming_source.from_data import as_json

_S3: Final = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_override": "AWS_ENDPOINT_URL",
    "anonymous": "AWS_SKIP_SIGNATURE",
    "role_arn": "AWS_IAM_ROLE_ARN",
    "session_name": "AWS_IAM_ROLE_SESSION_NAME",
    "force_virtual_addressing": "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
}
_AZURE: Final = {
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "tenant_id": "AZURE_TENANT_ID",
    "client_id": "AZURE_CLIENT_ID",
    "client_secret": "AZURE_CLIENT_SECRET",
}
_GCS: Final = {"anonymous": "GOOGLE_SKIP_SIGNATURE"}

_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("abfs", "abfss"), _AZURE),
    **dict.fromkeys(("gs", "gcs"), _GCS),
}

_SECONDS: Final = {"request_timeout": "timeout", "connect_timeout": "connect_timeout"}
"""Which pyarrow takes in seconds, and deltalake with a unit."""

_OF_PYARROW: Final = (
    *("allow_bucket_creation", "allow_bucket_deletion", "allow_delayed_open", "background_writes"),
    *("check_directory_existence_before_creation", "scheme"),
)
"""Which say nothing of how a log is read."""


def storage_options(uri: str, storage: StorageOptions) -> dict[str, str] | None:
    """Return what `deltalake` takes for the options of `pyarrow.fs`.

    An `OptionError` for one that it has no name for.
    """
    storage = storage.current()
    if not storage.values:
        return None
    scheme = uri.partition(":")[0].lower()
    known, given = _NAMES.get(scheme, {}), dict(storage.values)
    found = {}
    for name, value in given.items():
        if name in known:
            found[known[name]] = value
        elif name in _SECONDS:
            found[_SECONDS[name]] = f"{round(float(value) * 1000)}ms"
        elif name not in _OF_PYARROW:
            names = ", ".join(sorted({*known, *_SECONDS, *_OF_PYARROW}))
            raise OptionError(
                f"option storage.{name}: the log of a Delta table is read by deltalake, which has nothing like it for "
                f"{scheme}; known are {names}. Take one of these, or set it in the environment"
            )
    endpoint = found.get("AWS_ENDPOINT_URL")
    if endpoint is not None:
        has_scheme = "://" in endpoint
        found["AWS_ENDPOINT_URL"] = endpoint if has_scheme else f"{given.get('scheme', 'https')}://{endpoint}"
        found["AWS_ALLOW_HTTP"] = str(found["AWS_ENDPOINT_URL"].startswith("http://")).lower()
    return found


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
            action = as_json(line)
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
