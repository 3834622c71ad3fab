"""Compacted topics, as other people's clients write, change and read them."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AIOTopicPartition
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer
from kafka.structs import TopicPartition as KafkaPythonPartition

from onelog.record.forms.kafka import HEAD, from_neutral, with_crc
from onelog.record.forms.neutral import Neutral
from onelog.server import BrokerServer
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.gateways.kafka.live import SECONDS, Sent, address, consumer, kafka, produce, take
from tests.gateways.kafka.raw import batch_of, raw, values_in
from tests.waiting import eventually

SOON = {"segment_ms": "1", "min_cleanable_dirty_ratio": "0.01"}
OFTEN = {"broker__compaction_interval_ms": 20}
Pair = tuple[bytes | None, bytes | None]


def write(at: str, pairs: list[Pair], **settings: str) -> Sent:
    given = {key.replace("_", "."): value for key, value in settings.items()}
    producer = Producer({"bootstrap.servers": at, "linger.ms": 5, **given})
    sent = Sent()
    for key, value in pairs:
        producer.produce("prices", value, key, partition=0, on_delivery=sent)
    assert producer.flush(SECONDS) == 0
    return sent


async def is_clean(server: BrokerServer, end: int) -> None:
    """Wait until a pass has come to an offset."""

    def has_come() -> bool:
        left = server.core.compaction.compacted.get(("prices", 0))
        return left is not None and left.clean >= end

    await eventually(has_come, f"a pass up to {end}")


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_clients_read_the_last_value_of_each_key(tmp_path: Path, codec: str) -> None:
    pairs: list[Pair] = [(b"k%d" % (each % 30), b"%d" % each) for each in range(2_000)]
    async with kafka(tmp_path, **OFTEN) as server, raw(server) as client:
        at = address(server)
        await client.make_topic("prices", 1, cleanup_policy="compact", **SOON)
        await asyncio.to_thread(write, at, pairs, compression_codec=codec)
        await asyncio.to_thread(write, at, [(b"k0", None)])
        await asyncio.to_thread(write, at, [(b"end", b"end")])
        await is_clean(server, 2_001)
        expected = [*range(1_970, 1_980), *range(1_981, 2_002)]  # Of k0 there is the tombstone.
        reader = consumer(at, "readers", isolation_level="read_committed")
        reader.assign([TopicPartition("prices", 0, 0)])
        found = await asyncio.to_thread(take, reader, len(expected))
        assert [each.offset() for each in found] == expected
        assert [each.value() for each in found[:-2]] == [b"%d" % each for each in expected[:-2]]
        assert found[-2].value() is None
        await asyncio.to_thread(reader.close)
        assert await asyncio.to_thread(read_by_kafka_python, at, len(expected)) == expected
        assert await read_by_aiokafka(at, len(expected)) == expected


def read_by_kafka_python(at: str, count: int) -> list[int]:
    reader = KafkaConsumer(bootstrap_servers=at, auto_offset_reset="earliest")
    place = KafkaPythonPartition("prices", 0)
    reader.assign([place])
    reader.seek(place, 0)
    found: list[int] = []
    while len(found) < count:
        some = reader.poll(timeout_ms=int(SECONDS * 1000))
        assert some
        found += [each.offset for each in some[place]]
    reader.close()
    return found


async def read_by_aiokafka(at: str, count: int) -> list[int]:
    reader = AIOKafkaConsumer(bootstrap_servers=at, auto_offset_reset="earliest")
    place = AIOTopicPartition("prices", 0)
    await reader.start()
    reader.assign([place])
    reader.seek(place, 0)
    found = [(await asyncio.wait_for(reader.getone(), SECONDS)).offset for _ in range(count)]
    await reader.stop()
    return found


async def test_what_was_aborted_is_gone_and_what_follows_is_not(tmp_path: Path) -> None:
    def run(at: str) -> None:
        producer = Producer({"bootstrap.servers": at, "transactional.id": "t"})
        producer.init_transactions(SECONDS)
        for value, is_good in ((b"1", True), (b"2", False), (b"3", True), (b"4", False)):
            producer.begin_transaction()
            producer.produce("prices", value, value, partition=0)
            producer.produce("prices", value, b"all", partition=0)
            producer.flush(SECONDS)
            end = producer.commit_transaction if is_good else producer.abort_transaction
            end(SECONDS)

    async with kafka(tmp_path, **OFTEN) as server, raw(server) as client:
        at = address(server)
        await client.make_topic("prices", 1, cleanup_policy="compact", **SOON)
        await asyncio.to_thread(run, at)
        await asyncio.to_thread(write, at, [(b"end", b"end")])
        await is_clean(server, 12)
        for isolation in ("read_committed", "read_uncommitted"):
            reader = consumer(at, "readers", isolation_level=isolation)
            reader.assign([TopicPartition("prices", 0, 0)])
            found = await asyncio.to_thread(take, reader, 4)
            assert [each.offset() for each in found] == [0, 6, 7, 12]
            await asyncio.to_thread(reader.close)


async def test_messages_without_a_key_are_refused(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("prices", cleanup_policy="compact")
        batch = from_neutral([Neutral(key, b"x") for key in (b"a", None, b"b", None)])
        answer = await client.produce("prices", batch)
        assert (answer["error_code"], answer["base_offset"]) == (ErrorCode.INVALID_RECORD, -1)
        assert [each["batch_index"] for each in answer["record_errors"]] == [1, 3]
        sent = await asyncio.to_thread(write, address(server), [(None, b"x")])
        assert [each.code() for each in sent.errors] == [KafkaError.INVALID_RECORD]
        broken = bytearray(batch_of(b"x"))
        broken[HEAD.size] += 8  # A record that claims more than there is.
        answer = await client.produce("prices", with_crc(bytes(broken)))
        assert answer["error_code"] == ErrorCode.INVALID_RECORD
        assert (await client.produce("prices", batch_of(b"x")))["base_offset"] == 0


async def test_librdkafkas_administrator_turns_it_on_and_off(tmp_path: Path) -> None:
    def change(at: str, value: str, operation: AlterConfigOpType) -> str | None:
        admin = AdminClient({"bootstrap.servers": at})
        entry = ConfigEntry("cleanup.policy", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, "prices", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)
        described = ConfigResource(ResourceType.TOPIC, "prices")
        found = admin.describe_configs([described])[described].result(SECONDS)
        told: str | None = found["cleanup.policy"].value
        return told

    async with kafka(tmp_path, **OFTEN) as server, raw(server) as client:
        at = address(server)
        await client.make_topic("prices", 1, **SOON)
        await asyncio.to_thread(produce, at, "prices", [b"1", b"2"])
        await asyncio.to_thread(produce, at, "prices", [b"3", b"4"])
        assert values_in((await client.fetch("prices", 0))["records"])[0] == (0, b"1")
        set_it, add = AlterConfigOpType.SET, AlterConfigOpType.APPEND
        assert await asyncio.to_thread(change, at, "compact", set_it) == "compact"
        await is_clean(server, 2)
        await asyncio.to_thread(produce, at, "prices", [b"5"])
        await is_clean(server, 4)
        answer = await client.fetch("prices", 0)
        assert values_in(answer["records"])[0] == (2, b"3")
        assert (answer["log_start_offset"], answer["high_watermark"]) == (0, 5)
        assert await asyncio.to_thread(change, at, "delete", add) == "compact,delete"
        subtract = AlterConfigOpType.SUBTRACT
        assert await asyncio.to_thread(change, at, "compact", subtract) == "delete"
        await asyncio.to_thread(produce, at, "prices", [b"6"])
        assert values_in((await client.fetch("prices", 0))["records"])[0] == (2, b"3")


async def test_a_topic_is_made_compacted_and_so_described(tmp_path: Path) -> None:
    def run(at: str) -> None:
        admin = AdminClient({"bootstrap.servers": at})
        topic = NewTopic("prices", 1, 1, config={"cleanup.policy": "compact, delete"})
        admin.create_topics([topic])["prices"].result(SECONDS)

    async with kafka(tmp_path) as server, raw(server) as client:
        await asyncio.to_thread(run, address(server))
        resources = [{"resource_type": 2, "resource_name": "prices", "configuration_keys": None}]
        told = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources})
        found = {each["name"]: each["value"] for each in told["results"][0]["configs"]}
        assert found["cleanup.policy"] == "compact,delete"
