"""Consumer groups of other people's clients: sharing out, committing, coming back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer, KafkaProducer

from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.gateways.kafka.live import SECONDS, address, consumer, kafka, produce, take, until
from tests.gateways.kafka.raw import raw

PROTOCOLS = ["classic", "consumer"]


def make_topic(at: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": at})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(SECONDS)


def group_consumer(at: str, group: str, protocol: str, **settings: Any) -> Consumer:
    usual = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200}
    if protocol == "consumer":
        usual = {}
    return consumer(at, group, group_protocol=protocol, **{**usual, **settings})


def partitions_of(reader: Consumer) -> list[int]:
    return sorted(each.partition for each in reader.assignment())


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_group_goes_on_where_it_committed(tmp_path: Path, protocol: str) -> None:
    def read(at: str, count: int) -> list[Any]:
        reader = group_consumer(at, "readers", protocol)
        reader.subscribe(["orders"])
        found = take(reader, count)
        reader.commit(asynchronous=False)
        committed = reader.committed([TopicPartition("orders", 0)], SECONDS)
        reader.close()
        return [*(each.value() for each in found), committed[0].offset]

    async with kafka(tmp_path) as server:
        at = address(server)
        values: list[bytes | None] = [b"%d" % each for each in range(20)]
        await asyncio.to_thread(produce, at, "orders", values)
        assert await asyncio.to_thread(read, at, 8) == [*values[:8], 8]
        assert server.core.offsets.get("readers", "orders", 0) == 8
    async with kafka(tmp_path) as server:
        assert await asyncio.to_thread(read, address(server), 12) == [*values[8:], 20]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_two_members_share_the_partitions_and_one_takes_over_from_the_other(
    tmp_path: Path, protocol: str
) -> None:
    def run(at: str) -> None:
        make_topic(at, "orders", 4)
        one, two = (group_consumer(at, "readers", protocol) for _ in range(2))
        one.subscribe(["orders"])
        until(lambda: partitions_of(one) == [0, 1, 2, 3], one)
        two.subscribe(["orders"])

        def shared() -> bool:
            two.poll(0.05)
            both = partitions_of(one) + partitions_of(two)
            return len(partitions_of(one)) == 2 and sorted(both) == [0, 1, 2, 3]

        until(shared, one)
        one.close()
        until(lambda: partitions_of(two) == [0, 1, 2, 3], two)
        two.close()

    async with kafka(tmp_path) as server:
        await asyncio.to_thread(run, address(server))


async def test_kafka_python_produces_and_consumes_with_a_group(tmp_path: Path) -> None:
    def run(at: str) -> None:
        producer = KafkaProducer(bootstrap_servers=at, acks="all")
        sent = [
            producer.send(
                "orders", b"v%d" % each, b"k", headers=[("h", b"1")], timestamp_ms=5 + each
            )
            for each in range(10)
        ]
        assert [each.get(SECONDS).offset for each in sent] == list(range(10))
        producer.close()
        reader = KafkaConsumer(
            "orders",
            bootstrap_servers=at,
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=20_000,
        )
        found = [next(reader) for _ in range(10)]
        assert [each.value for each in found] == [b"v%d" % each for each in range(10)]
        assert (found[3].key, found[3].timestamp) == (b"k", 8)
        assert [tuple(each) for each in found[3].headers] == [("h", b"1")]
        reader.commit()
        reader.close()

    async with kafka(tmp_path) as server:
        await asyncio.to_thread(run, address(server))
        assert server.core.offsets.get("readers", "orders", 0) == 10


async def test_aiokafka_produces_and_consumes_with_a_group(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        at = address(server)
        producer = AIOKafkaProducer(bootstrap_servers=at, compression_type="gzip")
        await producer.start()
        for each in range(10):
            await producer.send_and_wait("orders", b"v%d" % each, b"k", timestamp_ms=5 + each)
        await producer.stop()
        reader = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=at,
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await reader.start()
        found = [await asyncio.wait_for(reader.getone(), SECONDS) for _ in range(10)]
        assert [(each.value, each.timestamp) for each in found] == [
            (b"v%d" % each, 5 + each) for each in range(10)
        ]
        await reader.commit()
        await reader.stop()
        assert server.core.offsets.get("readers", "orders", 0) == 10


async def test_how_short_a_session_may_be_is_a_setting(tmp_path: Path) -> None:
    joining = {
        "group_id": "readers",
        "session_timeout_ms": 1_000,
        "rebalance_timeout_ms": 1_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    async with kafka(tmp_path) as server, raw(server) as client:
        answer = await client.ask(ApiKey.JOIN_GROUP, 2, joining)
        assert answer["error_code"] == ErrorCode.INVALID_SESSION_TIMEOUT
        server.reconfigure({"kafka.session_min_ms": "1000"})
        answer = await client.ask(ApiKey.JOIN_GROUP, 2, joining)
        assert (answer["error_code"], answer["generation_id"]) == (0, 1)


@pytest.mark.parametrize("first", PROTOCOLS)
async def test_members_of_both_protocols_share_one_group(tmp_path: Path, first: str) -> None:
    second = "consumer" if first == "classic" else "classic"

    def run(at: str) -> None:
        make_topic(at, "orders", 4)
        one, two = group_consumer(at, "readers", first), group_consumer(at, "readers", second)
        one.subscribe(["orders"])
        until(lambda: partitions_of(one) == [0, 1, 2, 3], one)
        two.subscribe(["orders"])

        def shared() -> bool:
            two.poll(0.05)
            both = partitions_of(one) + partitions_of(two)
            return len(partitions_of(one)) == 2 and sorted(both) == [0, 1, 2, 3]

        until(shared, one)
        one.close()
        until(lambda: partitions_of(two) == [0, 1, 2, 3], two)
        two.close()

    async with kafka(tmp_path) as server:
        await asyncio.to_thread(run, address(server))
