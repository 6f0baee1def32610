"""Secrets of options: what Spark gets, and what errors show of them."""

from __future__ import annotations

import json
import re

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streaming_source import read_stream
from streaming_source.data_files.stores import Root, StorageOptions
from streaming_source.exceptions import AlignmentError
from streaming_source.spark.datasource import source_class
from streaming_source.spark.option_text import with_secrets_hidden, with_secrets_shown
from streaming_source.spark.options import SECRET_OPTIONS
from tests.spark import test_secrets

SECRET = "tell/no+body@all"


@pytest.mark.parametrize(
    ("format_name", "option", "value"),
    [
        ("aligned_files", "path", f"s3://KEY:{SECRET}@bucket/data"),
        ("aligned_files", "path", f"abfss://data@account.dfs.core.windows.net/x?sig={SECRET}"),
        ("aligned_delta", "lateLocation", f"s3://KEY:{SECRET}@bucket/late"),
        ("aligned_delta", "storage.AWS_SECRET_ACCESS_KEY", SECRET),
        ("aligned_iceberg", "catalog.token", SECRET),
        ("aligned_iceberg", "catalog.uri", f"https://user:{SECRET}@host"),
        ("aligned_kafka", "schemaRegistryUrl", f"https://user:{SECRET}@host:8081"),
        ("aligned_kafka", "schemaRegistryUrl", "https://tell@host:8081"),
        ("aligned_kafka", "schemaRegistry.basic.auth.user.info", f"user:{SECRET}"),
        ("aligned_kafka", "kafka.sasl.oauthbearer.assertion.private.key.passphrase", SECRET),
        ("aligned_kafka", "kafka.ssl.key.pem", SECRET),
    ],
)
def test_spark_gets_what_is_secret_under_a_name_that_it_hides(format_name: str, option: str, value: str) -> None:
    given = {option: value, "eventTimeColumn": "t"}
    hidden = with_secrets_hidden(given, source_class(format_name).options())
    assert hidden == {"eventTimeColumn": "t", SECRET_OPTIONS: json.dumps({option: value})}
    assert with_secrets_shown(hidden) == given


@pytest.mark.parametrize("path", ["/data", "s3://bucket/data", "abfss://data@account.dfs.core.windows.net/x"])
def test_a_path_without_a_secret_stays_in_the_plan(path: str) -> None:
    assert with_secrets_hidden({"path": path}, source_class("aligned_files").options()) == {"path": path}


@pytest.mark.parametrize("uri", [f"s3://KEY:{SECRET}@bucket/x", f"gopher://me:{SECRET}@host/x"])
@pytest.mark.parametrize("storage", [{}, {"region": "eu"}])
def test_no_error_shows_the_login_of_a_path(uri: str, storage: dict[str, str]) -> None:
    root = Root(uri, StorageOptions.of(storage))
    with pytest.raises(AlignmentError, match="cannot be opened") as raised:
        root.open()
    for text in (str(raised.value), repr(raised.value), repr(root)):
        assert not re.search("tell|body", text)


def test_no_plan_and_no_error_of_a_load_shows_a_secret(spark: SparkSession) -> None:
    """`test_secrets.py` runs queries, in `make soak`, and looks at all that is printed and written down."""
    shown = []
    for login in test_secrets.LOGINS:
        frame = read_stream(spark).format("aligned_kafka").options(**login).load()
        shown += [frame._jdf.queryExecution().toString(), repr(frame)]
    for name, place, options in test_secrets.REFUSED:
        with pytest.raises((AlignmentError, PySparkException)) as raised:
            read_stream(spark).format(name).options(eventTimeColumn="t", **options).load(place).explain(True)
        shown += [str(raised.value), repr(raised.value)]
    assert not [text for text in shown if test_secrets.SECRET in text]
