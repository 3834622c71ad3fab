"""Clients before Kafka 0.11: their message sets become batches, and batches become sets."""

import asyncio
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from onelog.gateways.kafka.batches import BatchError
from onelog.gateways.kafka.list_offsets import EARLIEST, LATEST
from onelog.gateways.kafka.message_sets import from_messages, to_batch
from onelog.record.forms import kafka as batches
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.gateways.kafka.live import SECONDS, address, kafka
from tests.gateways.kafka.raw import batch_of, raw, values_in

OPTIONAL = st.none() | st.binary(max_size=20)
MESSAGES = st.lists(st.builds(Neutral, OPTIONAL, OPTIONAL, st.just(()), st.integers(0, 1 << 40)))


def as_set(data: bytes, offset: int, magic: int) -> bytes:
    """The messages of a batch, from an offset on, as a set."""
    first = batches.read_head(data).base_offset
    found = [(first + delta, each) for delta, each in batches.records(data)]
    return from_messages([each for each in found if each[0] >= offset], magic, 1 << 30)


@given(messages=MESSAGES.filter(bool), magic=st.sampled_from([0, 1]))
def test_sets_and_batches_hold_the_same_messages(messages: list[Neutral], magic: int) -> None:
    held = as_set(batches.from_neutral(messages, 5), 5, magic)
    found = batches.to_neutral(to_batch(memoryview(held), 77))
    assert found == [each if magic else each._replace(time_ms=77) for each in messages]


@given(garbage=st.binary(max_size=60), at=st.integers(0, 60))
def test_garbage_is_no_set(garbage: bytes, at: int) -> None:
    good = as_set(batch_of(b"x", b"y"), 0, 1)
    for data in (garbage, good[:at] + garbage, good[:at] + garbage[:1] + good[at + 1 :]):
        try:
            to_batch(memoryview(data), 0)
        except BatchError:
            pass


def test_packed_messages_are_unpacked_but_not_twice() -> None:
    inner = as_set(batch_of(b"one", b"two"), 0, 1)

    def packed(value: bytes) -> bytes:
        wrapper = batches.from_neutral([Neutral(None, gzip.compress(value), (), 3)])
        held = bytearray(as_set(wrapper, 0, 1))
        held[17] = Codec.GZIP
        held[12:16] = batches_crc(bytes(held[16:]))
        return bytes(held)

    found = batches.to_neutral(to_batch(memoryview(packed(inner)), 0))
    assert [(each.body, each.time_ms) for each in found] == [(b"one", 1_000), (b"two", 1_001)]
    with pytest.raises(BatchError) as refused:
        to_batch(memoryview(packed(packed(inner))), 0)
    assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def batches_crc(data: bytes) -> bytes:
    import zlib

    return zlib.crc32(data).to_bytes(4, "big")


@pytest.mark.parametrize("version", range(4))
async def test_old_requests_are_served(tmp_path: Path, version: int) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        held = as_set(batch_of(b"one", b"two"), 0, min(version, 1))
        sent = held if version < 3 else batch_of(b"one", b"two")
        assert (await client.produce("orders", sent, version=version))["base_offset"] == 0
        bad = await client.produce("orders", sent[:-1], version=version)
        assert bad["error_code"] == ErrorCode.CORRUPT_MESSAGE
        await client.produce("orders", batch_of(b"three", codec=Codec.GZIP))
        found = await client.fetch("orders", 1, version=version)
        again = to_batch(found["records"], 0)
        assert [value for _, value in values_in(again)] == [b"two", b"three"]
        for time_ms, offsets in ((LATEST, [3]), (EARLIEST, [0]), (1 << 60, [])):
            wanted = {"partition_index": 0, "timestamp": time_ms}
            told = await client.ask(
                ApiKey.LIST_OFFSETS, 0, {"topics": [{"name": "orders", "partitions": [wanted]}]}
            )
            assert told["topics"][0]["partitions"][0]["old_style_offsets"] == offsets


async def test_kafka_python_as_of_ten_works(tmp_path: Path) -> None:
    def run(at: str) -> None:
        producer = KafkaProducer(
            bootstrap_servers=at, api_version=(0, 10, 0), compression_type="gzip"
        )
        for each in range(10):
            producer.send("orders", b"%d" % each, timestamp_ms=5 + each)
        producer.flush(SECONDS)
        producer.close()
        reader = KafkaConsumer(
            bootstrap_servers=at,
            api_version=(0, 10, 0),
            group_id="readers",
            auto_offset_reset="earliest",
            consumer_timeout_ms=20_000,
        )
        reader.assign([TopicPartition("orders", 0)])
        found = [next(reader) for _ in range(10)]
        assert [(each.value, each.timestamp) for each in found] == [
            (b"%d" % each, 5 + each) for each in range(10)
        ]
        reader.close()

    async with kafka(tmp_path) as server:
        await asyncio.to_thread(run, address(server))
