"""Options of Kafka: Spark's names, in Spark's order of precedence, refused with what to do instead."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaException

from streaming_source.api import Boundedness
from streaming_source.connectors.kafka import KafkaSource
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, Boundary, Partition, Subscription
from streaming_source.exceptions import OptionError, SourceError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.options import FRAME_OPTIONS, STRATEGY_OPTIONS, frame_options

ALL = STRATEGY_OPTIONS | FRAME_OPTIONS | KafkaSource.options()
BROKERS = "host1:9092,host2:9092"


def source(**options: Any) -> KafkaSource:
    return KafkaSource.of(BROKERS, **options)


# ---- what to read --------------------------------------------------------------------------------------------------


def test_topics_are_subscribed_to_by_their_names() -> None:
    assert source(subscribe=" b,a ,b").subscription == Subscription("subscribe", ("a", "b"))
    assert source(subscribe="a,b").identity == source(subscribe="b,a").identity == "subscribe:a,b"


def test_a_pattern_is_found_anywhere_in_a_name() -> None:
    chosen = source(subscribePattern="orders-.*").subscription
    assert [chosen.matches(topic) for topic in ("orders-eu", "old-orders-eu", "orders")] == [True, True, False]
    whole = source(subscribePattern="^orders-[a-z]++$").subscription
    assert [whole.matches(topic) for topic in ("orders-eu", "old-orders-eu", "orders-1")] == [True, False, False]


@pytest.mark.parametrize("pattern", [r"\p{Alpha}+", "(?<name>x)", r"\Qa.b\E", "a(?i)b", "[a-z&&[^x]]", "[[a]b]"])
def test_a_pattern_that_only_java_understands_is_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match=r"option subscribePattern = .*: must be a regular expression of Python"):
        source(subscribePattern=pattern)


def test_single_partitions_are_assigned() -> None:
    chosen = source(assign='{"a": [2, 0], "b": [1]}').subscription
    assert chosen.topics == ("a", "b")
    assert chosen.select("a", [0, 1, 2]) == [Partition("a", 0), Partition("a", 2)]
    assert not chosen.matches("c")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no topics are given: give exactly one of subscribe, subscribePattern, assign"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "options subscribe and assign exclude each other"),
        ({"subscribe": ","}, "option subscribe = ',': must name at least one topic"),
        ({"subscribePattern": "("}, r"option subscribePattern = '\(': must be a regular expression"),
        ({"assign": "{}"}, r"option assign = '{}': must be JSON of topics and their partitions, like"),
        ({"assign": '{"a": [-1]}'}, "must be JSON of topics and their partitions"),
        ({"assign": '["a"]'}, "must be JSON of topics and their partitions"),
    ],
)
def test_what_to_read_must_be_said_once_and_well(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source(**options)


# ---- settings of the client ----------------------------------------------------------------------------------------


def test_settings_are_passed_through_and_those_of_this_source_are_not_the_users() -> None:
    config = source(subscribe="a", kafka={"fetch.wait.max.ms": 7, "client.id": "me"}).client.for_consumer()
    assert config["bootstrap.servers"] == BROKERS
    assert (config["fetch.wait.max.ms"], config["client.id"]) == ("7", "me")
    assert (config["auto.offset.reset"], config["enable.auto.commit"]) == ("error", "false")
    assert config["group.id"] == "spark-kafka-source-aligned"


def test_an_admin_client_gets_no_settings_of_consumers() -> None:
    admin = source(subscribe="a", kafka={"fetch.wait.max.ms": 7, "security.protocol": "SSL"}).client.for_admin()
    assert admin == {"bootstrap.servers": BROKERS, "security.protocol": "SSL", "log_level": "2"}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("auto.offset.reset", "say where to start with option startingOffsets"),
        ("enable.auto.commit", "it is set here"),
        ("sasl.jaas.config", "set kafka.sasl.username, kafka.sasl.password"),
        ("ssl.truststore.location", "set kafka.ssl.ca.location"),
        ("ssl.keystore.location", "-deststoretype PKCS12. and name that file"),
        ("value.deserializer", "see option valueFormat"),
        ("sasl.login.callback.handler.class", "give option tokenProvider"),
        ("ssl.enabled.protocols", "leave it out"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_what_to_set_instead(name: str, advice: str) -> None:
    with pytest.raises(OptionError, match=f"option kafka.{name} cannot be set: .*{advice}"):
        source(subscribe="a", kafka={name: "secret-value"})


MODULES = "kafkashaded.org.apache.kafka.common.security"
LOGIN = 'username="kim" password="a\\"b;c";'


@pytest.mark.parametrize(
    ("java", "here"),
    [
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required\n  {LOGIN}"},
            {"sasl.mechanism": "PLAIN", "sasl.username": "kim", "sasl.password": 'a"b;c'},
        ),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required {LOGIN}",
            },
            {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "kim", "sasl.password": 'a"b;c'},
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://a/token",
                "sasl.jaas.config": "OAuthBearerLoginModule required clientId=me clientSecret='x';",
            },
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://a/token",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "x",
            },
        ),
        ({"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca"}, {"ssl.ca.location": "/ca"}),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/me", "ssl.key.password": "x"},
            {"ssl.certificate.location": "/me", "ssl.key.location": "/me", "ssl.key.password": "x"},
        ),
        (
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "x"},
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "x"},
        ),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        (
            {"fetch.max.wait.ms": "7", "request.timeout.ms": "60000"},
            {"fetch.wait.max.ms": "7", "socket.timeout.ms": "60000"},
        ),
    ],
)
def test_settings_of_the_java_client_are_translated(java: dict[str, str], here: dict[str, str]) -> None:
    assert dict(source(subscribe="a", kafka=java).client.settings) == {"bootstrap.servers": BROKERS, **here}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sasl.jaas.config": f"a.PlainLoginModule required {LOGIN}"},
            "needs kafka.sasl.mechanism = PLAIN, and it is None",
        ),
        ({"sasl.mechanism": "OAUTHBEARER"}, "needs tokens: give option tokenProvider"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "is a mechanism of the Java client; give option tokenProvider"),
        (
            {"sasl.jaas.config": "com.IAMLoginModule required;"},
            "IAMLoginModule is a class of Java; give option tokenProv",
        ),
        (
            {"fetch.max.wait.ms": "7", "fetch.wait.max.ms": "8"},
            "fetch.wait.max.ms cannot be set: it conflicts with another setting of the Java client",
        ),
        ({"fetch.min.byte": "7"}, "option kafka.fetch.min.byte: No such configuration property.*CONFIGURATION.md"),
        ({"sasl.mechanism": "PLAIN", "security.protocol": "SASL_SSL"}, "sasl.username and sasl.password must be set"),
    ],
)
def test_settings_that_no_client_takes_are_refused_before_a_query_starts(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        source(subscribe="a", kafka=settings)
    assert "b;c" not in str(refused.value)


OAUTH = {"security.protocol": "SASL_SSL"}


def failing_token() -> tuple[str, float]:
    raise ValueError("a secret")


def test_a_token_provider_is_found_by_its_name_and_equal_to_its_copies() -> None:
    name = "time:localtime"
    read = source(subscribe="a", tokenProvider=name, kafka=OAUTH)
    assert read == source(subscribe="a", tokenProvider=name, kafka=OAUTH) == pickle.loads(pickle.dumps(read))
    assert dict(read.client.settings)["sasl.mechanism"] == "OAUTHBEARER"
    given = KafkaSource.of(BROKERS, "a", token_provider=failing_token, kafka=OAUTH)
    assert given.client == pickle.loads(pickle.dumps(given)).client != read.client
    with pytest.raises(OptionError, match=r"option tokenProvider = 'time:no': must be 'module:function' .* install"):
        source(subscribe="a", tokenProvider="time:no", kafka=OAUTH)
    with pytest.raises(OptionError, match=r"needs kafka.security.protocol = SASL_SSL .* they are PLAINTEXT"):
        source(subscribe="a", tokenProvider=name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (failing_token, "it raised ValueError; call it by itself"),
        (lambda: "token", "it must return a tuple"),
        (
            lambda: ("token", 1_700_000_000_000),
            "expiry of the token in seconds since the epoch, not in milliseconds",
        ),
    ],
)
def test_a_token_that_is_none_is_said_without_what_may_be_secret(make: Any, message: str) -> None:
    client = KafkaSource.of(BROKERS, "a", token_provider=make, kafka=OAUTH).client
    with pytest.raises(SourceError, match=message):
        client.for_consumer()["oauth_cb"]("")
    failed = str(client.error("asking", KafkaException("no token")))
    assert "the token provider failed: it" in failed
    assert "a secret" not in failed


def test_the_brokers_are_required() -> None:
    with pytest.raises(OptionError, match=r"option kafka\.bootstrap\.servers is missing"):
        AlignedDataSource.of_format("aligned_kafka", {"subscribe": "a"})


def test_secrets_are_neither_shown_nor_kept_in_texts() -> None:
    read = source(subscribe="a", kafka={"sasl.password": "hunter2", "sasl.username": "kim", "client.id": "me"})
    assert "hunter2" not in repr(read) + read.identity + repr(read.client)
    assert read.client.scrub("login of kim with hunter2 as me failed") == "login of *** with *** as me failed"
    assert pickle.loads(pickle.dumps(read)) == read


@pytest.mark.parametrize("user", ["p", "top", "pics"])
def test_a_short_user_name_is_struck_out_by_itself_and_in_no_other_word(user: str) -> None:
    config = source(subscribe="a", kafka={"sasl.username": user, "sasl.password": "s3c=ret/"}).client
    told = f"asking for topics failed: user={user} '{user}' {user}: s3c=ret/; x{user}_s3c=ret/"
    assert config.scrub(told) == "asking for topics failed: user=*** '***' ***: ***; x" + f"{user}_***"


# ---- where to start and to end -------------------------------------------------------------------------------------

P0, P1 = Partition("a", 0), Partition("a", 1)


class Log:
    """Two partitions that answer, and count how often they are asked."""

    def __init__(self, by_time: dict[Partition, int | None] | None = None) -> None:
        self.calls = 0
        self._by_time = by_time or {}

    def __call__(self, wanted: Any) -> dict[Partition, int | None]:
        self.calls += 1
        fixed = {EARLIEST: 10, LATEST: 90}
        return {part: fixed.get(number, self._by_time.get(part)) for part, number in wanted.items()}


def test_a_stream_starts_at_the_latest_records_and_what_ends_at_the_earliest() -> None:
    assert source(subscribe="a").start.kind == "latest"
    assert source(subscribe="a", bounded=True).start.kind == "earliest"
    assert source(subscribe="a").for_batch().start.kind == "earliest"
    assert source(subscribe="a", startingOffsets="Earliest").start.kind == "earliest"


def test_a_timestamp_goes_before_those_by_partition_and_these_before_offsets() -> None:
    given = {
        "startingTimestamp": 5,
        "startingOffsetsByTimestamp": '{"a": {"0": 6}}',
        "startingOffsets": "earliest",
    }
    chosen = []
    while given:
        chosen.append(source(subscribe="a", **given).start.option)
        given.pop(next(iter(given)))
    assert chosen == ["startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"]


def test_offsets_by_partition_are_resolved_in_one_call() -> None:
    log = Log()
    start = source(subscribe="a", startingOffsets='{"a": {"0": 23, "1": -2}}').start
    assert start.resolve([P0, P1], log) == {P0: 23, P1: 10}
    assert log.calls == 1


def test_a_word_for_a_topic_stands_for_all_its_partitions() -> None:
    other = Partition("b", 0)
    start = source(subscribe="a,b", startingOffsets='{"a": "earliest", "b": {"0": 7}}').start
    assert start.resolve([P0, P1, other], Log()) == {P0: 10, P1: 10, other: 7}
    assert source(subscribe="a", startingOffsets='{"a": "LATEST"}').start.resolve([P0, P1], Log()) == {P0: 90, P1: 90}


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (
            '{"a": {"0": 1}}',
            "option startingOffsets lacks a-1: it must name exactly the partitions that are read, a-0",
        ),
        ('{"a": {"0": 1, "1": 1, "7": 1}}', "option startingOffsets names a-7"),
    ],
)
def test_offsets_by_partition_must_name_all_partitions_and_no_others(offsets: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source(subscribe="a", startingOffsets=offsets).start.resolve([P0, P1], Log())


def test_a_time_after_the_last_record_is_an_error_or_the_end() -> None:
    log = Log({P0: 50, P1: None})
    with pytest.raises(OptionError, match="option startingTimestamp: partition a-1 has no record at or after 5 ms"):
        source(subscribe="a", startingTimestamp=5).start.resolve([P0, P1], log)
    lenient = source(subscribe="a", startingTimestamp=5, startingOffsetsByTimestampStrategy="latest").start
    assert lenient.resolve([P0, P1], log) == {P0: 50, P1: 90}


def test_an_end_makes_the_source_bounded() -> None:
    assert source(subscribe="a").boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    for options in ({"bounded": True}, {"endingOffsets": "latest"}, {"endingTimestamp": 7}):
        assert source(subscribe="a", **options).boundedness is Boundedness.BOUNDED
    ended = source(subscribe="a", endingTimestamp=7).end
    assert ended is not None
    assert ended.resolve([P0, P1], Log({P0: 50, P1: None})) == {P0: 50, P1: 90}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "newest"}, "option startingOffsets = 'newest': must be JSON"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "option startingOffsets: a-0 has -3; must be at least -2"),
        ({"startingOffsets": "latest", "bounded": True}, "cannot start at latest .-1."),
        ({"startingOffsets": '{"a": {"0": -1}}', "bounded": True}, "cannot start at latest .-1."),
        ({"endingOffsets": "earliest"}, "option endingOffsets = 'earliest': must be latest, or JSON"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "option endingOffsets: a-0 has -2; must be at least -1"),
        ({"startingOffsets": '{"a": {"0": 9223372036854775808}}'}, "must be at least -2, and fit 64 bits"),
        ({"startingTimestamp": "9223372036854775808"}, "must be milliseconds since 1970, in 64 bits"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp = 'yesterday': must be a whole number"),
    ],
)
def test_a_start_or_an_end_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source(subscribe="a", **options)


def test_a_batch_read_that_is_to_start_at_its_end_is_refused() -> None:
    with pytest.raises(OptionError, match="option startingOffsets: what is read to an end cannot start at latest"):
        source(subscribe="a", startingOffsets="latest").for_batch()


def test_the_default_start_is_not_taken_for_a_wish() -> None:
    assert source(subscribe="a").start == Boundary("startingOffsets", "latest", is_given=False)


# ---- other names ---------------------------------------------------------------------------------------------------


def test_names_of_spark_stand_for_those_of_every_format() -> None:
    values = ALL.parse({"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "3"})
    options = frame_options(values)
    assert (options.max_rows_per_trigger, options.min_rows_per_trigger) == (10, 3)


def test_two_names_of_one_option_must_agree() -> None:
    assert ALL.parse({"maxOffsetsPerTrigger": "10", "maxRowsPerTrigger": "10"})["maxRowsPerTrigger"] == 10
    with pytest.raises(
        OptionError, match="options maxOffsetsPerTrigger = '10' and maxRowsPerTrigger = '11' are the same"
    ):
        ALL.parse({"maxOffsetsPerTrigger": "10", "maxRowsPerTrigger": "11"})


def test_the_least_must_not_be_more_than_the_most() -> None:
    with pytest.raises(OptionError, match="option minRowsPerTrigger = 11: must be at most maxRowsPerTrigger = 10"):
        frame_options(ALL.parse({"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "11"}))


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match="unknown option 'startingOffset'; did you mean startingOffsets"):
        ALL.parse({"startingOffset": "latest"})


def test_settings_of_the_client_are_collected_and_the_prefix_is_found_in_any_case() -> None:
    values = ALL.parse({"kafka.bootstrap.servers": "a", "KAFKA.client.id": "me", "kafkaConsumer.pollTimeoutMs": "5"})
    assert values["kafka.*"] == {"bootstrap.servers": "a", "client.id": "me"}
    assert values["kafkaConsumer.pollTimeoutMs"] == timedelta(milliseconds=5)


def test_durations_are_the_same_however_they_are_written() -> None:
    assert source(subscribe="a", brokerTimeout="1 minute") == source(subscribe="a", brokerTimeout="60 seconds")
    assert source(subscribe="a").poll_timeout == timedelta(minutes=2)


# ---- values --------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_sparks_own_source() -> None:
    assert source(subscribe="a").schema().names == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
    ]
    assert source(subscribe="a", includeHeaders=True).schema().names[-1] == "headers"


def test_json_values_are_a_struct_and_their_fields_can_be_event_times() -> None:
    read = AlignedDataSource.of_format(
        "aligned_kafka",
        {
            "kafka.bootstrap.servers": BROKERS,
            "subscribe": "a",
            "valueFormat": "json",
            "valueSchema": "id BIGINT, ts TIMESTAMP",
            "eventTimeColumn": "value.ts",
        },
    )
    assert read.schema()["value"].dataType.simpleString() == "struct<id:bigint,ts:timestamp>"


def test_json_with_times_that_may_lack_a_zone_asks_for_it_where_no_session_is_known() -> None:
    options = {"kafka.bootstrap.servers": BROKERS, "subscribe": "a", "valueFormat": "json"}
    for fields, asks in (("s STRUCT<t TIMESTAMP>", True), ("t TIMESTAMP_NTZ", False), ("n BIGINT", False)):
        read = AlignedDataSource.of_format("aligned_kafka", {**options, "valueSchema": fields}, None)
        with pytest.raises(OptionError, match="option timeZone is missing") if asks else nullcontext():
            read.schema()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "json"}, "option valueFormat = 'json' needs valueSchema"),
        ({"valueSchema": "a INT"}, "option valueFormat = 'binary' takes no valueSchema"),
        ({"valueFormat": "avro"}, "option valueFormat = 'avro' needs schemaRegistryUrl"),
        ({"schemaRegistryUrl": "http://a"}, "option valueFormat = 'binary' takes no schemaRegistryUrl"),
        ({"timestampFormat": "yyyy"}, "option valueFormat = 'binary' takes no timestampFormat"),
        ({"valueFormat": "json", "valueSchema": "t DATE", "dateFormat": "b"}, "dateFormat = 'b': the letter b is not"),
        ({"valueFormat": "json", "valueSchema": "m MAP<INT, INT>"}, "valueSchema: m: the keys of a map in JSON are"),
        ({"valueFormat": "xml"}, "option valueFormat = 'xml': must be one of binary, string, json"),
    ],
)
def test_formats_of_values_are_checked(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source(subscribe="a", **options)


def test_settings_are_equal_in_any_order() -> None:
    one, other = {"bootstrap.servers": "a", "client.id": "b"}, {"client.id": "b", "bootstrap.servers": "a"}
    assert ClientConfig.of(one) == ClientConfig.of(other)
    assert hash(ClientConfig.of(one)) == hash(ClientConfig.of(other))
