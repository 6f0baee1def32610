"""How much is fetched of partitions that wait, for an earlier one or paused, and that they are read when they go on."""

from __future__ import annotations

import pytest
from confluent_kafka import Message, TopicPartition

from streaming_source.api import KeptClients, RecordBlock, RecordsBySplits, SplitsAddition, SplitsRemoval
from streaming_source.connectors.kafka import split_reader
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.records import BinaryValues, MessageColumns, record_schema
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.split_reader import KafkaSplitReader
from streaming_source.exceptions import SourceError
from tests.kafka.topics import Record, Topic

PARTITIONS, RECORDS, AHEAD = 20, 500, 1000


class Client:
    """A consumer of partitions that have `RECORDS` each; but of partition 0 only 100 while `is_away`."""

    def __init__(self) -> None:
        self.next: dict[int, int] = {}
        self.begun = set[int]()
        self.is_away = True

    def incremental_assign(self, where: list[TopicPartition]) -> None:
        self.next.update((one.partition, one.offset) for one in where)
        self.begun.update(self.next)

    def incremental_unassign(self, where: list[TopicPartition]) -> None:
        for one in where:
            del self.next[one.partition]

    def consume(self, count: int, timeout: float) -> list[Message]:
        messages: list[Message] = []
        for partition, offset in self.next.items():
            end = 100 if self.is_away and partition == 0 else RECORDS
            stop = min(end, offset + count - len(messages))
            messages += [_message(partition, number) for number in range(offset, stop)]
            self.next[partition] = max(offset, stop)
        return messages

    def list_topics(self, *_: object, **__: object) -> object:
        raise AssertionError("the wait is shorter")

    def unassign(self) -> None:
        self.next.clear()

    def close(self) -> None:
        pass


def _message(partition: int, offset: int) -> Message:
    return Message(topic="orders", partition=partition, offset=offset, value=b"v", timestamp=(1, 1000))


def test_of_partitions_behind_one_that_waits_no_more_is_held_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_reader, "_AHEAD", AHEAD)
    client, values = Client(), BinaryValues()
    monkeypatch.setattr(split_reader.PartitionConsumer, "client", client)
    reader = KafkaSplitReader(
        ClientConfig.of({"bootstrap.servers": "nowhere:9092"}),
        KeptClients(),
        None,
        MessageColumns(record_schema(values, headers=False), values),
        fail_on_data_loss=True,
        poll_timeout_s=0.2,
        in_order=True,
    )
    splits = [KafkaSplit("orders", partition, stop=RECORDS) for partition in range(PARTITIONS)]
    reader.handle_splits_changes(SplitsAddition(splits))
    assert rows_of(reader.fetch()) == {"orders-0": 100}
    with pytest.raises(SourceError, match="partition orders-0: nothing came"):
        reader.fetch()
    assert client.begun == {0, 1, 2}, "a third one behind it would be held beyond the bound"
    client.is_away = False
    rows = {"orders-0": 100}
    while sum(rows.values()) < PARTITIONS * RECORDS:
        for split_id, count in rows_of(reader.fetch()).items():
            assert split_id not in [*rows][:-1], "its turn is over"
            rows[split_id] = rows.get(split_id, 0) + count
    assert [*rows] == [split.split_id for split in splits]


@pytest.mark.parametrize("closes", [True, False], ids=["another reader", "the same reader"])
def test_a_partition_that_was_given_up_while_it_was_paused_is_read_when_it_is_added_again(
    topic: Topic, closes: bool
) -> None:
    topic.create().write(Record(1000 + number) for number in range(6))
    clients, values = KeptClients(), BinaryValues()

    def new_reader() -> KafkaSplitReader:
        return KafkaSplitReader(
            ClientConfig.of({"bootstrap.servers": topic.broker.bootstrap}),
            clients,
            None,
            MessageColumns(record_schema(values, headers=False), values),
            fail_on_data_loss=True,
            poll_timeout_s=5,
            at_once=3,
        )

    reader, split = new_reader(), KafkaSplit(topic.name, 0, stop=6)
    reader.handle_splits_changes(SplitsAddition([split]))
    assert rows_of(reader.fetch()) == {split.split_id: 3}
    reader.pause_or_resume_splits([split], [])
    if closes:
        reader.close()
        reader = new_reader()
    else:
        reader.handle_splits_changes(SplitsRemoval([split]))
    reader.handle_splits_changes(SplitsAddition([split]))
    assert [rows_of(reader.fetch()) for _ in range(2)] == [{split.split_id: 3}] * 2
    reader.close()
    clients.close()


def rows_of(fetched: RecordsBySplits[RecordBlock]) -> dict[str, int]:
    rows = {}
    while (split_id := fetched.next_split()) is not None:
        rows[split_id] = 0
        while (block := fetched.next_record_from_split()) is not None:
            rows[split_id] += block.batch.num_rows
    return rows
