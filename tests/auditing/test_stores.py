"""A checkpoint and its files in an object store, read with `storage.*`."""

from __future__ import annotations

from pathlib import Path

import pytest

import streaming_source
from tests.auditing.test_damaged import write
from tests.files.stores import s3_store


def test_a_checkpoint_in_an_object_store_is_audited_as_one_on_disk(tmp_path: Path, s3_endpoint: str) -> None:
    done = write(tmp_path)
    store = s3_store(s3_endpoint)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if "sources" in path.parts:
                # As Hadoop writes them there.
                data = data.replace(f"file://{tmp_path}".encode(), store.uri.replace("s3:", "s3a:").encode())
            with store.filesystem.open_output_stream(f"{store.path}/{path.relative_to(tmp_path)}") as stream:
                stream.write(data)

    found = streaming_source.audit(f"{store.uri}/checkpoint", window="1 minute", mode="append", options=store.options)

    assert found.dropped == sum(counts["dropped"] for counts in done.counts.values()) > 0
    assert (
        found.splits()
        == streaming_source.audit(str(tmp_path / "checkpoint"), window="1 minute", mode="append").splits()
    )
    with pytest.raises(streaming_source.exceptions.SourceError):
        streaming_source.audit(f"{store.uri}/nothing", window="1 minute", mode="append", options=store.options)
