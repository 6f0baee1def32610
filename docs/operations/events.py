"""Writes events of eight devices into a Kafka topic of four partitions; those of partition 3 come two minutes late.

Started by compose.yaml; anywhere else: `KAFKA=localhost:9092 python events.py`.
"""

from __future__ import annotations

import os
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

brokers, topic = os.environ.get("KAFKA", "localhost:9092"), os.environ.get("TOPIC", "events")
admin = AdminClient({"bootstrap.servers": brokers})
if topic not in admin.list_topics(timeout=60).topics:
    admin.create_topics([NewTopic(topic, num_partitions=4, replication_factor=1)])[topic].result()
producer = Producer({"bootstrap.servers": brokers, "linger.ms": 50})
while True:
    now_ms = int(time.time() * 1000)
    for device in range(8):
        partition = device % 4
        time_ms = now_ms - (120_000 if partition == 3 else 0)
        producer.produce(topic, key=f"device-{device}", value="1", partition=partition, timestamp=time_ms)
    producer.flush()
    time.sleep(0.1)
