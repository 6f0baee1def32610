"""File systems to write files into and to read them from: local, a server that speaks S3, fsspec."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from streaming_source.connectors.files import FileSource
from streaming_source.data_files.stores import Root, StorageOptions
from tests.files.test_layout_orders import SECOND

SECRET = "do-not-tell-this-key"
_NOBODY = 65534


@dataclass
class Store:
    """A directory of a file system."""

    uri: str
    filesystem: fs.FileSystem
    path: str
    storage: dict[str, str]

    def write(self, name: str, seconds: list[float], **columns: Any) -> str:
        table = pa.table({"t": pa.array([round(s * SECOND) for s in seconds], pa.timestamp("us")), **columns})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, row_group_size=3)
        return self.put(name, buffer.getvalue())

    def put(self, name: str, data: bytes) -> str:
        """The file is there as a whole, or not at all."""
        path = f"{self.path}/{name}"
        self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        hidden = f"{path.rpartition('/')[0]}/_{path.rpartition('/')[2]}"
        with self.filesystem.open_output_stream(hidden, compression=None) as stream:
            stream.write(data)
        self.filesystem.move(hidden, path)
        return name

    def remove(self, name: str) -> None:
        self.filesystem.delete_file(f"{self.path}/{name}")

    def names(self, below: str = "") -> list[str]:
        selector = fs.FileSelector(f"{self.path}/{below}".rstrip("/"), recursive=True, allow_not_found=True)
        infos = self.filesystem.get_file_info(selector)
        return sorted(info.path[len(self.path) + 1 :] for info in infos if info.type is fs.FileType.File)

    def source(self, split_by: Any = "file", below: str = "in", **arguments: Any) -> FileSource:
        """Of what is below `in`; other places are below the store as well."""
        for name in ("state_location", "source_archive_dir"):
            if name in arguments:
                arguments[name] = f"{self.uri}/{arguments[name]}"
        storage = StorageOptions.of(self.storage)
        columns = pa.schema([("t", pa.timestamp("us"))])
        return FileSource(f"{self.uri}/{below}", split_by, data_schema=columns, storage=storage, **arguments)

    @property
    def options(self) -> dict[str, str]:
        return {f"storage.{name}": value for name, value in self.storage.items()}


def open_store(kind: str, folder: Path, request: pytest.FixtureRequest) -> Store:
    """One of `local`, `s3`, `fsspec`, `fsspec without times`."""
    if kind == "local":
        return Store(str(folder), fs.LocalFileSystem(), str(folder), {})
    if kind == "s3":
        return s3_store(request.getfixturevalue("s3_endpoint"))
    pytest.importorskip("fsspec")
    uri = f"local://{folder}" if kind == "fsspec" else f"memory://{uuid4().hex}"
    filesystem, path = Root(uri).open()
    filesystem.create_dir(path)
    return Store(uri, filesystem, path, {})


def s3_store(endpoint: str) -> Store:
    storage = {
        "access_key": "somebody",
        "secret_key": SECRET,
        "endpoint_override": endpoint,
        "scheme": "http",
        "region": "us-east-1",
        "allow_bucket_creation": "true",
        # The first answer takes the server a while.
        "request_timeout": "60",
    }
    bucket = f"bucket-{uuid4().hex[:12]}"
    filesystem, path = Root(f"s3://{bucket}", StorageOptions.of(storage)).open()
    filesystem.create_dir(bucket)
    return Store(f"s3://{bucket}", filesystem, path, storage)


@contextmanager
def without_rights(path: Path) -> Iterator[None]:
    """As a user who has no right to a file or directory, and may come to it."""
    mode = path.stat().st_mode
    path.chmod(0o000)
    for parent in path.parents:
        if (found := parent.stat().st_mode) & 0o055 != 0o055:
            parent.chmod(found | 0o055)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(mode)
