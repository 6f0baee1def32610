"""One answer to "is there a secret in this text?" and "may this name be shown?"."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import pytest

import alignment
from alignment.exceptions import AlignmentError
from alignment.shown import SECRET_NAMES, has_secret, log_of, printable, scrubbed, shown, without_secrets

ADDRESSES = [
    "s3://KEY:{}@bucket/data",
    "s3a://KEY:{}@bucket:9000/data?region=eu",
    "s3:KEY:{}@bucket",
    "https://user:{}@host:8081",
    "https://:{}@host:8081",
    "http://host/path?sig={}",
    "abfss://data@account.dfs.core.windows.net/x?sig={}&se=2030",
    "wasbs://data@account.blob.core.windows.net/x?sv=1&sig={}",
    "gs://bucket/x#access_token={}",
    "jdbc:postgresql://user:{}@db:5432/orders",
    "gopher://user:{}@host/x?a=b",
    "https://one:{}@host,https://two:{}@host",
    "user:{}@host:9092",
]
SECRETS = [
    "tell-nobody",
    "tell/nobody",
    "tell@nobody",
    "tell+no/bo@dy=",
    "tell?nobody",
    "tell#nobody",
    "tell:nobody",
    "tell,nobody",
]

# Of librdkafka: what src/rdkafka_conf.c marks as sensitive.
LIBRDKAFKA = [
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.password",
    "sasl.username",
    "ssl.ca.pem",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "ssl_key",
]
# Of Kafka's Java client: those of type PASSWORD, and what has a login in it.
JAVA_CLIENT = [
    "sasl.jaas.config",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.certificates",
    "ssl.truststore.password",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.passphrase",
]
REGISTRY = [
    "basic.auth.user.info",
    "bearer.auth.token",
    "bearer.auth.client.secret",
    "ssl.key.password",
    "ssl.key.location",
    "proxy",
    "http.proxy",
]
# Of deltalake: the keys of object_store for S3, Azure and Google that have a secret, and their short names.
DELTALAKE = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_token",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "token",
    "aws_sse_customer_key_base64",
    "aws_container_authorization_token_file",
    "azure_storage_account_key",
    "azure_storage_access_key",
    "azure_storage_master_key",
    "access_key",
    "account_key",
    "master_key",
    "azure_storage_client_secret",
    "azure_client_secret",
    "client_secret",
    "azure_storage_sas_key",
    "azure_storage_sas_token",
    "sas_key",
    "sas_token",
    "azure_storage_token",
    "bearer_token",
    "azure_federated_token_file",
    "azure_fabric_session_token",
    "google_service_account_key",
    "service_account_key",
    "google_application_credentials",
    "application_credentials",
    "proxy_url",
]
PYICEBERG = [
    "token",
    "credential",
    "auth.basic.password",
    "auth.oauth2.client_secret",
    "header.authorization",
    "header.x-api-key",
    "header.cookie",
    "client.access-key-id",
    "client.secret-access-key",
    "client.session-token",
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "s3.proxy-uri",
    "adls.connection-string",
    "adls.account-key",
    "adls.sas-token",
    "adls.client-secret",
    "adls.credential",
    "adls.token",
    "gcs.oauth2.token",
    "hf.token",
    "glue.access-key-id",
    "glue.secret-access-key",
    "glue.session-token",
    "dynamodb.access-key-id",
    "dynamodb.secret-access-key",
    "dynamodb.session-token",
]
PYARROW = [
    "access_key",
    "secret_key",
    "session_token",
    "proxy_options",
    "access_token",
    "account_key",
    "client_secret",
    "sas_token",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_no_text_shows_the_secret_of_an_address(address: str, secret: str) -> None:
    uri = address.replace("{}", secret)
    texts = [
        uri,
        f"path: cannot be opened as a file system: Cannot parse URI: '{uri}' due to syntax error",
        f"cannot open {uri}: no such host; give another one",
        f'option path = "{uri}": must be text',
        f"Root(uri={uri!r}, storage=StorageOptions(credentials=None))",
        f'["{uri}","{uri}"]',
    ]
    assert has_secret(uri)
    for text in texts:
        hidden = without_secrets(text)
        assert not re.search("tell|nobody", hidden), hidden
        assert without_secrets(hidden) == hidden, "to hide it twice is to hide it once"


def test_a_secret_with_a_quote_or_a_space_is_hidden_where_the_address_ends() -> None:
    assert without_secrets("no 's3://K:te'll@b/x': end") == "no 's3://***@b/x': end"
    assert without_secrets("s3://b/k?secret_key=one two") == "s3://b/k?***"
    assert without_secrets("'s3://b/k?secret_key=one two' is bad; mend it") == "'s3://b/k?***' is bad; mend it"
    assert without_secrets('{"path":"s3://b?sig=x","z":"t"}') == '{"path":"s3://b?***","z":"t"}'


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/orders/day=1/a.parquet",
        "s3://bucket/user=a@b.com/x",
        "abfss://data@account.dfs.core.windows.net/x",
        "hdfs://namenode:9000/orders",
        "https://host:8081",
        "/data/orders/a.parquet",
        "orders-0: 2026-01-01 10:02:13 UTC",
        "the watermark stands; see docs/troubleshooting.md",
        "maxDrift=10 seconds, tokenProvider=my_tokens:make",
    ],
)
def test_what_has_no_secret_is_shown_as_it_is(text: str) -> None:
    assert without_secrets(text) == text
    assert not has_secret(text)


@pytest.mark.parametrize("name", sorted({*LIBRDKAFKA, *JAVA_CLIENT, *REGISTRY, *DELTALAKE, *PYICEBERG, *PYARROW}))
def test_settings_that_clients_and_stores_call_sensitive_are_secret(name: str) -> None:
    assert SECRET_NAMES.search(name)
    assert without_secrets(f"it has {name}=tell, and more") == f"it has {name}=***, and more"


@pytest.mark.parametrize(
    "name",
    [
        "bootstrap.servers",
        "security.protocol",
        "sasl.mechanism",
        "ssl.ca.location",
        "ssl.certificate.location",
        "region",
        "endpoint_override",
        "account_name",
        "s3.endpoint",
        "warehouse",
        "uri",
        "type",
        "tokenprovider",
        "group.id",
        "session_name",
    ],
)
def test_settings_that_say_where_and_how_are_none(name: str) -> None:
    assert not SECRET_NAMES.search(name)


def test_known_values_are_hidden_as_whole_words() -> None:
    assert scrubbed("p cannot read topics: p, pq", ["p", ""]) == "*** cannot read topics: ***, pq"


@pytest.mark.parametrize(
    "text", ["://", "a:", "a://", "s3://x?'", "'", "x=", "a=b:@ ", "s3://a:b@", "'s3:/", "-", "a.", "\\", "?#"]
)
def test_a_text_of_a_megabyte_takes_no_long_time(text: str) -> None:
    begun_s = time.process_time()
    shown(text * (200_000 // len(text)))
    assert time.process_time() - begun_s < 5


NAME = "orders\x1b[2J\r\n2026-01-01T00:00:00.000Z ERROR forged\x07\x9b\u202e\udc80"


def test_a_name_is_one_line_that_no_terminal_obeys() -> None:
    assert printable(NAME) == ("orders\\x1b[2J\\r\\n2026-01-01T00:00:00.000Z ERROR forged\\x07\\x9b\\u202e\\udc80")
    assert printable("größe/注文") == "größe/注文"


def test_an_error_and_a_log_line_show_no_control_characters_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    error = AlignmentError(f"file {NAME} of s3://KEY:tell/it@bucket cannot be read; remove it")
    log_of("streaming_source.tests_of_shown").warning("file %s of %s", NAME, "s3://KEY:tell/it@bucket")
    for text in (*str(error).splitlines(), caplog.records[0].getMessage()):
        assert text == printable(text)
        assert "tell" not in text
        assert not text.startswith("2026-")
    assert logging.getLogger("streaming_source.tests_of_shown") is log_of("streaming_source.tests_of_shown")


def test_no_module_logs_past_it() -> None:
    library = Path(alignment.__file__).parents[1] / "streaming_source"
    assert not [path for path in library.rglob("*.py") if "logging.getLogger(__name__)" in path.read_text("utf-8")]
