"""Splits of Kafka without a broker: how they are found, written down, and lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from streaming_source.api import SourceSplit, SplitRange
from streaming_source.connectors.kafka import KafkaSource
from streaming_source.connectors.kafka.admin import FoundRecord, KafkaAdmin
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.config import KafkaConfig
from streaming_source.connectors.kafka.enumerator import KafkaSplitEnumerator
from streaming_source.connectors.kafka.faults import Away, BrokerRetries
from streaming_source.connectors.kafka.log_ends import LogEnd, LogEnds
from streaming_source.connectors.kafka.partition_discovery import FoundPartitions, PartitionDiscovery
from streaming_source.connectors.kafka.split import (
    KafkaCheckpoint,
    KafkaCheckpointSerializer,
    KafkaSplit,
    KafkaSplitSerializer,
    KnownTopic,
)
from streaming_source.connectors.kafka.subscription import EARLIEST, Boundary, Partition, Subscription
from streaming_source.exceptions import DataLossError, OffsetError, OptionError, SourceError
from streaming_source.testing import TestingEnumeratorContext

SPLITS, CHECKPOINTS = KafkaSplitSerializer(), KafkaCheckpointSerializer()


@dataclass
class Cluster:
    """Topics with an id and a number of partitions; every partition holds the offsets 5 to 50."""

    there: dict[str, tuple[str, int]] = field(default_factory=dict)
    # Deleted after the topics were listed.
    gone: set[Partition] = field(default_factory=set)

    def topics(self, subscription: Subscription, known: Collection[str] = ()) -> list[KnownTopic]:
        return [
            KnownTopic(name, topic_id, tuple(range(count)))
            for name, (topic_id, count) in sorted(self.there.items())
            if subscription.matches(name)
        ]

    def offsets(self, wanted: Mapping[Partition, int]) -> Mapping[Partition, int | None]:
        return {part: 5 if number == EARLIEST else 50 for part, number in wanted.items() if part not in self.gone}


def discovery(
    cluster: Cluster,
    subscription: Subscription,
    checkpoint: KafkaCheckpoint | None = None,
    *,
    bounded: bool = False,
    fail_on_data_loss: bool = True,
) -> PartitionDiscovery:
    start, end = Boundary("startingOffsets", "latest"), Boundary("endingOffsets", "latest")
    client = ClientConfig.of({"bootstrap.servers": "nowhere"})
    config = KafkaConfig(client, subscription, start, end if bounded else None, fail_on_data_loss=fail_on_data_loss)
    return PartitionDiscovery(cluster, config, checkpoint)


def found(splits: tuple[KafkaSplit, ...]) -> dict[str, int]:
    return {split.split_id: split.position for split in splits}


# ---- splits and offsets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "written"),
    [
        (KafkaSplit("orders", 3, 120, 7), b'["orders",3,120,7]'),
        (KafkaSplit("orders", 3, 120, 7, 200), b'["orders",3,120,7,200]'),
        (KafkaSplit("orders", 3, 120, 7, None, "Zq3kX0aB"), b'["orders",3,120,7,null,"Zq3kX0aB"]'),
    ],
)
def test_a_split_is_written_shortly_and_read_back(split: KafkaSplit, written: bytes) -> None:
    assert SPLITS.serialize(split) == written
    assert SPLITS.deserialize(1, written) == split


def test_a_split_of_a_long_log_is_written_in_a_hundred_bytes() -> None:
    split = KafkaSplit("a-topic-with-a-rather-long-name", 999, 10**14, 10**14, 10**14)
    assert len(SPLITS.serialize(split)) <= 100


def test_a_split_goes_on_and_back_to_its_origin() -> None:
    split: SourceSplit = KafkaSplit("orders", 0, 7, 7)
    assert split.at(100).until(200) == KafkaSplit("orders", 0, 100, 7, 200)
    assert split.at(100).origin() == split


@pytest.mark.parametrize("data", [b'["orders"]', b"{}", b'["orders",0,-1,0]', b'["orders","0",1,0]', b"7", b"["])
def test_what_is_no_split_is_a_damaged_offset(data: bytes) -> None:
    with pytest.raises(OffsetError, match="damaged offset"):
        SPLITS.deserialize(1, data)


def test_a_checkpoint_is_written_by_topic_and_read_back() -> None:
    topics = (
        KnownTopic("a", "id-a", (0, 1, 2)),
        KnownTopic("b", "", (1, 3)),
        KnownTopic("c", "id-c", (0,), "id-c"),
        KnownTopic("d", "id-d", (0, 1), "", ((1, 2),)),
    )
    checkpoint = KafkaCheckpoint(topics, "latest")
    written = CHECKPOINTS.serialize(checkpoint)
    assert written == (
        b'{"end":"latest","topics":{"a":["id-a",3],"b":["",[1,3]],"c":["id-c",1,"id-c"],"d":["id-d",2,"",[[1,2]]]}}'
    )
    assert CHECKPOINTS.deserialize(1, written) == checkpoint
    with pytest.raises(OffsetError, match=r"KafkaCheckpoint.topics = None: must be given"):
        CHECKPOINTS.deserialize(1, b"{}")


@pytest.mark.parametrize("serializer", [SPLITS, CHECKPOINTS])
def test_newer_versions_are_refused(serializer: KafkaSplitSerializer) -> None:
    with pytest.raises(OffsetError, match="have version 2, this library reads up to 1"):
        serializer.deserialize(2, b"[]")


# ---- discovery -----------------------------------------------------------------------------------------------------


def test_the_first_look_starts_where_the_options_say_and_later_ones_at_the_first_record() -> None:
    cluster = Cluster({"a": ("id", 2)})
    partitions = discovery(cluster, Subscription.to_topics("a"))
    assert found(partitions.discover().splits) == {"a-0": 50, "a-1": 50}
    assert partitions.discover().splits == ()
    cluster.there["a"] = ("id", 3)
    assert found(partitions.discover().splits) == {"a-2": 5}


def test_after_a_restart_only_what_is_new_is_found() -> None:
    cluster = Cluster({"a": ("id", 2)})
    checkpoint = discovery(cluster, Subscription.to_topics("a")).discover().checkpoint
    cluster.there["a"] = ("id", 3)
    assert found(discovery(cluster, Subscription.to_topics("a"), checkpoint).discover().splits) == {"a-2": 5}


def test_topics_that_come_to_match_a_pattern_are_read_from_their_first_record() -> None:
    cluster = Cluster({"x-1": ("1", 1), "y": ("y", 1)})
    partitions = discovery(cluster, Subscription.to_pattern("x-.*"))
    assert found(partitions.discover().splits) == {"x-1-0": 50}
    cluster.there["x-2"] = ("2", 1)
    assert found(partitions.discover().splits) == {"x-2-0": 5}


def test_a_pattern_may_match_nothing_yet_and_a_name_may_not() -> None:
    assert discovery(Cluster(), Subscription.to_pattern("x")).discover().splits == ()
    with pytest.raises(OptionError, match="option subscribe: the brokers know no topic 'x'; create it first"):
        discovery(Cluster(), Subscription.to_topics("x")).discover()


def test_splits_of_what_is_bounded_know_their_ends() -> None:
    partitions = discovery(Cluster({"a": ("id", 1)}), Subscription.to_topics("a"), bounded=True)
    assert partitions.discover().splits == (KafkaSplit("a", 0, 50, 50, 50),)


@pytest.mark.parametrize("now", [{}, {"a": ("other", 1)}], ids=["deleted", "created again"])
def test_a_topic_that_is_lost_is_an_error(now: dict[str, tuple[str, int]]) -> None:
    cluster = Cluster({"a": ("id", 1)})
    partitions = discovery(cluster, Subscription.to_topics("a"))
    partitions.discover()
    cluster.there = now
    with pytest.raises(DataLossError, match=r"topic 'a' was deleted, or deleted and created again, .* failOnDataLoss"):
        partitions.discover()


@pytest.mark.parametrize("bounded", [False, True])
def test_a_topic_that_goes_while_it_is_looked_at_is_no_news(bounded: bool) -> None:
    cluster = Cluster({"a": ("id", 1), "b": ("other", 2)})
    partitions = discovery(cluster, Subscription.to_pattern("[ab]"), bounded=bounded)
    cluster.gone = {Partition("b", 0), Partition("b", 1)}
    assert found(partitions.discover().splits) == {"a-0": 50}
    cluster.gone = set()
    assert found(partitions.discover().splits) == {"b-0": 5, "b-1": 5}, "it had not gone"


def test_a_topic_that_was_created_again_is_another_one_where_loss_is_allowed() -> None:
    cluster = Cluster({"a": ("first-id-", 2)})
    partitions = discovery(cluster, Subscription.to_topics("a"), fail_on_data_loss=False)
    partitions.discover()
    cluster.there = {}
    assert partitions.discover().lost == ("a-0", "a-1")
    assert partitions.discover() == FoundPartitions((), (), KafkaCheckpoint((KnownTopic("a", "first-id-", ()),)))
    cluster.there = {"a": ("second-id", 1)}
    again = partitions.discover()
    assert found(again.splits) == {"a-0@second-i": 5}
    assert again.lost == ()
    cluster.there = {"a": ("third-id-", 1)}
    both = partitions.discover()
    assert both.lost == ("a-0@second-i",)
    assert found(both.splits) == {"a-0@third-id": 5}


def test_where_brokers_give_no_ids_a_topic_is_known_by_its_name() -> None:
    cluster = Cluster({"a": ("", 1)})
    partitions = discovery(cluster, Subscription.to_topics("a"))
    partitions.discover()
    cluster.there = {"a": ("now-it-has-one", 1)}
    assert partitions.discover().checkpoint.topics == (KnownTopic("a", "now-it-has-one", (0,)),)


# ---- the enumerator ------------------------------------------------------------------------------------------------


def enumerator(
    cluster: Cluster,
    context: TestingEnumeratorContext[KafkaSplit],
    *,
    bounded: bool = False,
    ends_of: Mapping[Partition, LogEnd] = MappingProxyType({}),
    checkpoint: KafkaCheckpoint | None = None,
    fail_on_data_loss: bool = False,
) -> KafkaSplitEnumerator:
    partitions = discovery(
        cluster, Subscription.to_topics("a"), checkpoint, bounded=bounded, fail_on_data_loss=fail_on_data_loss
    )
    ends = LogEnds(
        lambda parts: {part: ends_of[part] for part in parts if part in ends_of},
        clock=count().__next__,
        fails=fail_on_data_loss,
    )
    return KafkaSplitEnumerator(context, partitions, BrokerRetries(0), ends, Away("a:9092", 300))


def run_calls_later(finds: KafkaSplitEnumerator, context: TestingEnumeratorContext[KafkaSplit]) -> None:
    """When `discoveryInterval` is over."""
    finds.discovery._due_at = 0
    context.run_calls()


def assigned(context: TestingEnumeratorContext[KafkaSplit]) -> list[str]:
    return sorted(split.split_id for splits in context.assigned.values() for split in splits)


def test_partitions_are_given_to_readers_as_they_are_found() -> None:
    cluster, context = Cluster({"a": ("id", 3)}), TestingEnumeratorContext[KafkaSplit](2)
    finds = enumerator(cluster, context)
    finds.start()
    for subtask_id in range(2):
        context.register_reader(subtask_id)
    assert context.periods == [1.0]
    context.run_calls()
    assert assigned(context) == ["a-0", "a-1", "a-2"]
    cluster.there["a"] = ("id", 4)
    context.run_calls()
    assert assigned(context) == ["a-0", "a-1", "a-2"]
    run_calls_later(finds, context)
    assert assigned(context) == ["a-0", "a-1", "a-2", "a-3"]
    assert finds.snapshot_state(1).topics == (KnownTopic("a", "id", (0, 1, 2, 3)),)
    assert not context.without_more


def test_splits_of_a_topic_that_is_gone_are_abandoned() -> None:
    cluster, context = Cluster({"a": ("id", 1)}), TestingEnumeratorContext[KafkaSplit]()
    finds = enumerator(cluster, context)
    finds.start()
    context.register_reader(0)
    context.run_calls()
    cluster.there = {}
    run_calls_later(finds, context)
    assert context.abandoned == ["a-0"]


def test_each_time_a_log_becomes_shorter_its_partition_is_another_split_from_its_end_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends = {Partition("a", 0): LogEnd(60, 60)}
    context = TestingEnumeratorContext[KafkaSplit]()
    finds = enumerator(Cluster({"a": ("id", 1)}), context, ends_of=ends)
    finds.start()
    context.register_reader(0)
    context.run_calls()
    context.run_calls()
    read = KafkaSplit("a", 0, 50, 50).until(60)
    finds.ranges_to_read([SplitRange(read, 10)])
    for end, abandoned in ((40, ["a-0"]), (45, ["a-0"]), (43, ["a-0", "a-0@1"])):
        ends[Partition("a", 0)] = LogEnd(end, end)
        context.run_calls()
        assert context.abandoned == abandoned
    # The third one does not begin at 43: records 40 to 42 are there, and were not read yet.
    begins = [(split.split_id, split.position) for splits in context.assigned.values() for split in splits]
    assert begins == [("a-0", 50), ("a-0@1", 40), ("a-0@2", 40)]
    assert caplog.text.count("its last ones were deleted; reading goes on") == 2
    topic = finds.snapshot_state(1).topics[0]
    assert topic == KnownTopic("a", "id", (0,), shortened=((0, 2),))
    # A topic that is created again begins anew.
    assert topic.incarnation_of(0) == "2"
    assert replace(topic, incarnation="Zq3kX0aB").incarnation_of(0) == "Zq3kX0aB.2"


@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_became_shorter_while_the_query_was_down_is_noticed_with_the_first_look(fails: bool) -> None:
    ends = {Partition("a", 0): LogEnd(40, 40)}
    context, known = TestingEnumeratorContext[KafkaSplit](), KafkaCheckpoint((KnownTopic("a", "id", (0,)),))
    finds = enumerator(Cluster({"a": ("id", 1)}), context, ends_of=ends, checkpoint=known, fail_on_data_loss=fails)
    finds.restore_splits([KafkaSplit("a", 0, 60, 5)])
    finds.start()
    context.register_reader(0)
    if fails:
        with pytest.raises(DataLossError, match="'a-0': offset 60 is not there, the partition ends at 40"):
            context.run_calls()
        return
    context.run_calls()
    assert context.abandoned == ["a-0"]
    assert assigned(context) == ["a-0@1"]
    # What was planned of the log before is not read of the one that is there.
    assert finds.ranges_to_read([SplitRange(KafkaSplit("a", 0, 50, 5, 60), 10)]) == []


def test_readers_of_what_is_bounded_get_no_more() -> None:
    context = TestingEnumeratorContext[KafkaSplit]()
    finds = enumerator(Cluster({"a": ("id", 1)}), context, bounded=True)
    finds.start()
    context.register_reader(0)
    assert context.periods == [None]
    context.run_calls()
    assert context.without_more == {0}


def test_splits_that_are_given_back_are_assigned_again() -> None:
    context = TestingEnumeratorContext[KafkaSplit]()
    finds = enumerator(Cluster({"a": ("id", 1)}), context)
    finds.start()
    context.register_reader(0)
    context.run_calls()
    lost = context.assigned.pop(0)
    finds.add_splits_back(lost, 0)
    finds.handle_split_request(0)
    assert context.assigned == {0: lost}


def test_a_restart_must_end_where_the_start_did() -> None:
    context = TestingEnumeratorContext[KafkaSplit]()
    bounded, unbounded = (KafkaSource.of("host:1", "a", bounded=value) for value in (True, False))
    until = [KafkaSource.of("host:1", "a", endingOffsets=f'{{"a": {{"0": {end}}}}}') for end in (10, 20)]
    for before, after, message in (
        (bounded, unbounded, "is of a source that ended at latest, this one did not end"),
        (unbounded, bounded, "is of a source that did not end, this one ended at latest"),
        (until[0], until[1], "is of a source that ended at endingOffsets [0-9a-f]{8}, this one ended at endingOffsets"),
    ):
        with pytest.raises(OffsetError, match=message):
            after.restore_enumerator(context, KafkaCheckpoint(end=before.end_description))


# ---- ends of logs --------------------------------------------------------------------------------------------------


class Ends:
    """Answers, or does not, and notes who was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.fails = False
        self.now = 0.0
        self.ends = LogEnds(self._ask, patience_s=10.0, clock=lambda: self.now)

    def _ask(self, parts: Sequence[Partition]) -> dict[Partition, LogEnd]:
        self.asked.append([str(part) for part in parts])
        if self.fails:
            raise SourceError("no brokers")
        return {part: LogEnd(len(self.asked), len(self.asked)) for part in parts}


PARTS = {f"a-{number}": Partition("a", number) for number in range(3)}


def test_all_ends_are_asked_for_in_one_call_and_kept_for_a_moment() -> None:
    brokers = Ends()
    brokers.ends.update(PARTS, ())
    assert [brokers.ends.end(split_id) for split_id in PARTS] == [LogEnd(1, 1)] * 3
    brokers.now = 0.19
    assert brokers.ends.end("a-0") == LogEnd(1, 1)
    brokers.now = 0.2
    assert [brokers.ends.end(split_id) for split_id in PARTS] == [LogEnd(2, 2)] * 3
    assert brokers.asked == [["a-0", "a-1", "a-2"]] * 2


def test_of_a_split_that_was_not_found_nothing_is_known_and_nothing_asked() -> None:
    brokers = Ends()
    assert brokers.ends.end("a-0") is None
    assert brokers.asked == []
    brokers.ends.update(PARTS, ())
    assert brokers.ends.end("a-0") == LogEnd(1, 1)


def test_splits_that_are_found_later_are_asked_for_at_once() -> None:
    brokers = Ends()
    brokers.ends.update({"a-0": PARTS["a-0"]}, ())
    brokers.ends.end("a-0")
    brokers.ends.update(PARTS, ())
    assert brokers.ends.end("a-2") == LogEnd(2, 2)


def test_a_split_that_is_gone_is_another_one_than_that_of_the_partition_now() -> None:
    brokers = Ends()
    brokers.ends.update({"a-0@new": PARTS["a-0"]}, ["a-0"])
    assert brokers.ends.is_lost("a-0")
    assert brokers.ends.end("a-0") is None
    assert not brokers.ends.is_lost("a-0@new")
    assert brokers.ends.end("a-0@new") == LogEnd(1, 1)


def test_of_brokers_that_do_not_answer_nothing_is_known(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Ends()
    brokers.ends.update(PARTS, ())
    assert brokers.ends.end("a-0") == LogEnd(1, 1)
    brokers.fails, brokers.now = True, 5.0
    assert brokers.ends.end("a-0") is None
    brokers.now = 7.0
    assert brokers.ends.end("a-0") is None
    assert [record.message for record in caplog.records] == [
        "no split becomes idle until the brokers return the ends of their logs: no brokers"
    ]
    brokers.fails, brokers.now = False, 9.0
    assert brokers.ends.end("a-0") == LogEnd(4, 4)
    brokers.fails, brokers.now = True, 11.0
    assert brokers.ends.end("a-0") is None
    brokers.now = 21.0
    with pytest.raises(SourceError, match="no brokers"):
        brokers.ends.end("a-0")


def test_a_question_is_asked_again_as_often_as_spark_would(caplog: pytest.LogCaptureFixture) -> None:
    given = {"fetchOffset.numRetries": 2, "fetchOffset.retryIntervalMs": 1}
    tried = []

    def fails() -> None:
        tried.append(1)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    with pytest.raises(KafkaException):
        KafkaSource.of("host:1", "a", **given).retry_policy().run(fails)
    assert len(tried) == 1 + 2


class StartingBroker(KafkaAdmin):
    """Leads a partition, and does not know of it when it is first asked."""

    def __init__(self, there: tuple[int, ...]) -> None:
        super().__init__(ClientConfig.of({"bootstrap.servers": "nowhere"}), BrokerRetries(10))
        self.there = there
        self.unknowing = 2

    def _listed(
        self, wanted: Mapping[Partition, int], level: object
    ) -> tuple[dict[Partition, FoundRecord | None], dict[Partition, KafkaError]]:
        self.unknowing -= 1
        if self.unknowing >= 0 or not self.there:
            return {}, dict.fromkeys(wanted, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return {part: FoundRecord(5, -1) for part in wanted}, {}

    def _refresh(self, names: list[str]) -> dict[str, dict[int, str]]:
        return dict.fromkeys(names, dict.fromkeys(self.there, "its leader does not answer"))


def test_a_partition_that_is_there_is_asked_for_until_its_broker_knows_it() -> None:
    part = Partition("orders", 0)
    assert StartingBroker((0,)).offsets({part: EARLIEST}) == {part: 5}
    assert StartingBroker(()).offsets({part: EARLIEST}) == {}


# ---- leaders that are away -----------------------------------------------------------------------------------------


class Answers:
    """A client of librdkafka: of a partition whose leader does not answer it has no error, and an invalid offset."""

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.tried: list[int] = []

    def list_offsets(self, specs: Mapping[TopicPartition, object], **_: object) -> dict[TopicPartition, Any]:
        self.tried += sorted(where.partition for where in specs)
        offsets = {where: OFFSET_INVALID if where.partition in self.away else 7 for where in specs}
        return {where: done(SimpleNamespace(offset=offset, timestamp=-1)) for where, offset in offsets.items()}

    def describe_topics(self, topics: object, **_: object) -> dict[str, Any]:
        leader = SimpleNamespace(id=2, host="host", port=9092)
        return {"a": done(SimpleNamespace(partitions=[SimpleNamespace(id=i, leader=leader) for i in range(3)]))}

    def poll(self, _: float) -> None: ...


def done(result: object) -> Any:
    future: Future[object] = Future()
    future.set_result(result)
    return future


def test_the_others_are_read_on_while_one_leader_is_away_until_that_takes_too_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, client, parts = [0.0], Answers(), list(PARTS.values())
    away = Away("nowhere", 60.0, lambda: now[0])
    admin = KafkaAdmin(ClientConfig.of({"bootstrap.servers": "nowhere"}), BrokerRetries(0), away)
    monkeypatch.setattr(admin, "_connected", lambda: client)
    client.away = {1}
    with pytest.raises(SourceError, match=r"partition a-1: no answer; its leader is broker 2 at host:9092"):
        admin.ends(parts)  # from where it is to be read nobody knows
    client.away = set()
    assert list(admin.ends(parts)) == parts
    client.away = {1}
    with pytest.raises(SourceError, match="partition a-1: no answer"):
        admin.records(dict.fromkeys(parts, 99))  # that it has no such record nobody has said
    assert list(admin.ends(parts)) == [parts[0], parts[2]]
    assert list(away.leaders) == [parts[1]]
    assert "a-1 is waited for, and holds the watermark: no answer; its leader is broker 2 at host:9092" in caplog.text
    # It is tried at once by a call of its own, and then for some seconds not again.
    assert list(admin.ends(parts)) == list(admin.ends(parts)) == [parts[0], parts[2]]
    client.tried.clear()
    admin.ends(parts)
    assert 1 not in client.tried
    now[0] = 59.0
    away.check()
    client.away = set()
    assert list(admin.ends(parts)) == [parts[0], parts[2], parts[1]]
    assert "the leader of partition a-1 is back" in caplog.text
    assert not away.leaders
    client.away = {0, 2}
    admin.ends(parts)
    now[0] = 119.0
    with pytest.raises(
        SourceError, match=r"partition a-0 could not be read for 60 s: no answer; its leader .* brokerTimeout"
    ):
        away.check()
    away.keep([])
    away.check()
