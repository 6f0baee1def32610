"""SASL_SSL on a real broker: settings as the Java client has them and as librdkafka has them, and tokens."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streaming_source import WatermarkStrategy, from_source
from streaming_source.api import credentials
from streaming_source.connectors.kafka import KafkaSource, admin, consumer
from streaming_source.exceptions import SourceError
from tests.kafka.broker import PASSWORD, USER, KafkaBroker
from tests.kafka.support import by_split, on_executor, reading
from tests.kafka.topics import MS, Record, Topic
from tests.spark.reading import Reading
from tests.spark.support import T0, available_now

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": USER, "sasl.password": PASSWORD}
NAME = f"{__name__}:token"


def token(user: str = USER) -> tuple[str, float]:
    """One that is not signed, as the broker here takes it."""
    now = time.time()
    parts = [{"alg": "none"}, {"sub": user, "iat": now, "exp": now + 3600}]
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts
    ) + ".", now + 3600


def login() -> dict[str, str]:
    return {f"kafka.sasl.{name}": SCRAM[f"sasl.{name}"] for name in ("username", "password")}


def no_login() -> dict[str, str]:
    return {**login(), "kafka.sasl.password": "another-secret"}


def no_token() -> tuple[str, float]:
    raise ValueError("a secret")


def settings(broker: KafkaBroker, **more: str) -> dict[str, str]:
    given = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(broker.certificate), **more}
    return {f"kafka.{name}": value for name, value in given.items()} | {
        "kafka.bootstrap.servers": broker.secure_bootstrap
    }


def java(broker: KafkaBroker) -> dict[str, str]:
    login = f'{MODULE} required username="{USER}" password="{PASSWORD}";'
    given = settings(broker, **{"sasl.mechanism": "PLAIN", "sasl.jaas.config": login, "ssl.truststore.type": "PEM"})
    return given | {"kafka.ssl.truststore.location": given.pop("kafka.ssl.ca.location")}


@pytest.mark.parametrize(
    "given",
    [
        java,
        lambda broker: settings(broker) | {"tokenProvider": NAME},
        # Both are below, where credentials are renewed.
        pytest.param(lambda broker: settings(broker, **SCRAM) | {"indexing": "scan"}, marks=pytest.mark.soak),
        pytest.param(
            lambda broker: (
                settings(broker, **{"sasl.mechanism": "SCRAM-SHA-256"}) | {"credentials": f"{__name__}:login"}
            ),
            marks=pytest.mark.soak,
        ),
    ],
    ids=["java's names", "token", "scram", "credentials"],
)
def test_a_topic_is_read_over_tls_by_planner_and_tasks(
    topic: Topic, given: Callable[[KafkaBroker], dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    topic.create(2).write([Record(T0 // MS + i, partition=i % 2) for i in range(6)])
    with reading(topic, **given(topic.broker)) as begun:
        begun.reader.prepareForTriggerAvailableNow()
        start = begun.reader.initialOffset()
        end = begun.reader.latestOffset(start, begun.reader.getDefaultReadLimit())
        tasks = begun.reader.partitions(start, end)
        batches = [batch for task in tasks for batch in on_executor(begun.reader).read(task)]
    assert sum(len(batch) - batch["offset"].null_count for batch in batches) == 6
    shown = json.dumps(end) + repr(begun.reader.source) + caplog.text
    assert PASSWORD not in shown
    assert USER not in shown


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            {"kafka.sasl.password": "another-secret"},
            r"Authentication failed.*refuses the login: check .* all three in Java's form$",
        ),
        (
            {"kafka.sasl.mechanism": "SCRAM-SHA-512"},
            r"\. Set kafka\.sasl\.mechanism to one of the broker's mechanisms$",
        ),
        ({"kafka.ssl.ca.location": ""}, r"certificate verify failed.* set kafka\.ssl\.ca\.location to the .*\(PEM\)$"),
        (
            {"kafka.ssl.ca.location": "/nowhere/ca.pem"},
            r"\. There is no file .*: set kafka\.ssl\.ca\.location to one .* every executor$",
        ),
        (
            {"kafka.ssl.keystore.location": "{p12}", "kafka.ssl.keystore.password": "wrong-secret"},
            r"\. kafka\.ssl\.keystore\.password does not open the file of .*: give its password$",
        ),
        (
            {"kafka.bootstrap.servers": "{by address}"},
            r"not for the name .127\.0\.0\.1.: use a name of .* kafka\.bootstrap\.servers .* any name$",
        ),
        ({"credentials": f"{__name__}:no_login"}, r"Authentication failed.*refuses the login: check"),
        pytest.param(
            {"tokenProvider": f"{__name__}:no_token"},
            r"the token provider failed: it raised ValueError; call it by itself to see why$",
            marks=pytest.mark.soak,  # the client waits ten seconds for it
        ),
    ],
    ids=["password", "mechanism", "certificate", "no-file", "store", "name", "credentials", "token"],
)
def test_a_connection_that_is_refused_ends_with_its_fix_and_without_a_secret(
    topic: Topic, wrong: dict[str, str], why: str, tmp_path: Path
) -> None:
    topic.create()
    login = {} if "tokenProvider" in wrong else SCRAM
    p12 = tmp_path / "client.p12"
    places = {"{p12}": str(p12), "{by address}": topic.broker.secure_bootstrap.replace("localhost", "127.0.0.1")}
    command = "openssl pkcs12 -export -nokeys -passout pass:right -in"
    subprocess.run([*command.split(), str(topic.broker.certificate), "-out", str(p12)], check=True)
    changed = {name: places.get(value, value) for name, value in wrong.items()}
    given = {name: value for name, value in (settings(topic.broker, **login) | changed).items() if value}
    with reading(topic, brokerTimeout="2 seconds", **given) as begun, pytest.raises(SourceError, match=why) as refused:
        begun.next()
    assert "secret" not in str(refused.value)
    assert USER not in str(refused.value)


@pytest.mark.parametrize("indexing", [pytest.param("auto", marks=pytest.mark.soak), "scan"])
def test_renewed_credentials_are_those_of_every_later_connection(
    topic: Topic, indexing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.create(2).write([Record(T0 // MS + i, partition=i % 2) for i in range(6)])
    now_s, calls = [1.7e9], []

    def renewed() -> tuple[dict[str, str], float]:
        calls.append(1)
        return {**login(), "kafka.client.id": f"client-{len(calls)}"}, now_s[0] + 3600

    monkeypatch.setattr(credentials, "time", SimpleNamespace(time=lambda: now_s[0]))
    credentials._held_of.cache_clear()
    monkeypatch.setattr(f"{__name__}.login_of_today", renewed, raising=False)
    made = spied(monkeypatch)
    given = settings(topic.broker, **{"sasl.mechanism": "SCRAM-SHA-256"}) | {"indexing": indexing}
    with reading(topic, credentials=f"{__name__}:login_of_today", **given) as begun:
        first = offsets_of(begun, 6)
        assert {settings["client.id"] for settings in made} == {"client-1"}
        made.clear()
        now_s[0] += 3400
        topic.write([Record(T0 // MS + i, partition=i % 2) for i in range(6, 10)])
        second = offsets_of(begun, 4)
    assert {settings["client.id"] for settings in made} == {"client-2"}
    assert (first, second) == ({0: [0, 1, 2], 1: [0, 1, 2]}, {0: [3, 4], 1: [3, 4]})


def spied(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of all clients that are made from now on."""
    made: list[dict[str, Any]] = []

    def spy(kind: Any) -> Any:
        def make(config: dict[str, Any]) -> Any:
            made.append(config)
            return kind(config)

        return make

    monkeypatch.setattr(consumer, "Consumer", spy(consumer.Consumer))
    monkeypatch.setattr(admin, "AdminClient", spy(admin.AdminClient))
    return made


def offsets_of(begun: Reading, rows: int) -> dict[int, list[int]]:
    """Offsets of the next so many records by partition."""
    found: dict[int, list[int]] = {}
    while sum(map(len, found.values())) < rows:
        if (table := begun.next()) is None:
            begun.await_unread(1)
            continue
        for partition, offsets in by_split(table).items():
            found.setdefault(partition, []).extend(offsets)
    return found


@pytest.mark.soak
@pytest.mark.spark
def test_a_token_provider_travels_to_the_executors(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    topic.create(2).write([Record(T0 // MS + i, partition=i % 2) for i in range(6)])
    make: Any = token
    secure = {name.removeprefix("kafka."): value for name, value in settings(topic.broker).items()}
    source = KafkaSource.of(
        secure.pop("bootstrap.servers"),
        topic.name,
        # Of no module that an executor could import.
        token_provider=lambda: make(),
        startingOffsets="earliest",
        kafka=secure,
    )
    frame = from_source(spark, source, WatermarkStrategy.for_monotonous_timestamps(), "secure")
    assert len(available_now(spark, frame.select("offset"), tmp_path / "cp").rows) == 6
