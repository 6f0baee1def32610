"""A Delta table in a store: its log is read by one library, its files by another."""

from __future__ import annotations

import pickle
from dataclasses import replace

import deltalake
import pytest

from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.delta.storage import storage_options
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import OptionError
from streaming_source.testing import SourceHarness
from tests.delta.tables import SECOND, STRATEGY, rows, times
from tests.files.stores import SECRET, s3_store


def test_a_table_on_s3_is_read_with_the_options_of_files(s3_endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    store = s3_store(s3_endpoint)
    uri, storage = f"{store.uri}/a b/table", StorageOptions.of(store.storage)
    options = {**(storage_options(uri, storage) or {}), "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}

    def append(*seconds: int) -> None:
        table = rows([second * SECOND for second in seconds], part=1)
        deltalake.write_deltalake(uri, table, mode="append", storage_options=options, partition_by=["part"])

    append(3, 1)
    append(2)
    source = DeltaSource(uri, storage=storage)
    done = SourceHarness(source, STRATEGY)
    done.run()
    append(9)
    done.clock.advance("2 seconds")
    done.restart()

    done.run()

    assert times(done) == [1 * SECOND, 2 * SECOND, 3 * SECOND, 9 * SECOND]
    said = f"{source!r} {done.state.splits} {source.identity} {source.title} {caplog.text}"
    assert SECRET not in said
    assert pickle.loads(pickle.dumps(source)) == source
    wrong = replace(source, path=f"{store.uri}/nothing")
    with pytest.raises(FileNotFoundError, match="there is no Delta table in") as error:
        wrong.schema()
    assert SECRET not in str(error.value)


def test_an_option_that_the_reader_of_the_log_has_nothing_like_is_refused() -> None:
    storage = StorageOptions.of({"access_key": "a", "tls_ca_file_path": "/x", "endpoint_override": "https://h:1"})
    with pytest.raises(OptionError, match=r"storage.tls_ca_file_path: the log of a Delta table .* for s3; known"):
        storage_options("s3://b/t", storage)
    assert storage_options("s3://b/t", StorageOptions.of({"endpoint_override": "h:1", "scheme": "http"})) == {
        "AWS_ENDPOINT_URL": "http://h:1",
        "AWS_ALLOW_HTTP": "true",
    }
    assert storage_options("/local", StorageOptions()) is None
