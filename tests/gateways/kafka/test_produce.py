"""Producers of other people, and what becomes of their batches."""

import asyncio
import struct
from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka import TopicPartition

from onelog.core.access import SELF
from onelog.core.transactions.producers import BatchProducers
from onelog.record.forms.kafka import Attribute, Codec, with_crc
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.core.replicas import give_replicas
from tests.gateways.kafka.live import address, consumer, kafka, produce, take
from tests.gateways.kafka.raw import RawClient, batch_of, batches_in, raw, values_in


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_librdkafka_produces_it_consumes(tmp_path: Path, codec: str) -> None:
    async with kafka(tmp_path) as server:
        at = address(server)
        values: list[bytes | None] = [b"%d" % each * 20 for each in range(500)]
        sent = await asyncio.to_thread(produce, at, "orders", values, compression_codec=codec)
        assert sent.places == [(0, each) for each in range(500)]
        reader = consumer(at, "readers")
        reader.assign([TopicPartition("orders", 0, 0)])
        found = await asyncio.to_thread(take, reader, 500)
        assert [each.value() for each in found] == values
        assert [each.offset() for each in found] == list(range(500))
        assert found[7].key() == b"k7"
        await asyncio.to_thread(reader.close)


async def test_a_batch_is_stored_as_it_came(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        batch = batch_of(b"one", b"two", codec=Codec.LZ4)
        assert (await client.produce("orders", batch))["base_offset"] == 0
        answer = await client.produce("orders", batch)
        assert (answer["error_code"], answer["base_offset"]) == (0, 2)
        assert answer["log_start_offset"] == 0
        (first, second) = server.core.store.messages("orders", 0, 0, 4)
        assert bytes(first.body) == batch
        assert (first.inner_count, second.queue_offset) == (2, 2)


def flipped(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes((batch[at] ^ 1,)) + batch[at + 1 :]


def repacked(batch: bytes, at: int, form: str, value: int) -> bytes:
    """The batch with another value in a field, and the CRC that belongs to it."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, at, value)
    return with_crc(bytes(changed))


GOOD = batch_of(b"one", b"two")
BAD = {
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "null": (None, ErrorCode.INVALID_RECORD),
    "crc": (flipped(GOOD, len(GOOD) - 1), ErrorCode.CORRUPT_MESSAGE),
    "cut": (GOOD[:40], ErrorCode.CORRUPT_MESSAGE),
    "length": (repacked(GOOD, 8, ">i", 1 << 30), ErrorCode.CORRUPT_MESSAGE),
    "two": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "magic": (repacked(GOOD, 16, ">b", 1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "count": (repacked(GOOD, 57, ">i", 3), ErrorCode.INVALID_RECORD),
    "no records": (repacked(GOOD, 57, ">i", 0), ErrorCode.INVALID_RECORD),
    "too many": (
        repacked(repacked(GOOD, 57, ">i", 1 << 30), 23, ">i", (1 << 30) - 1),
        ErrorCode.INVALID_RECORD,
    ),
    "too many packed": (
        repacked(repacked(batch_of(b"x", codec=Codec.ZSTD), 57, ">i", 900_000), 23, ">i", 899_999),
        ErrorCode.INVALID_RECORD,
    ),
    "codec": (repacked(GOOD, 21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "append time": (repacked(GOOD, 21, ">h", 8), ErrorCode.INVALID_TIMESTAMP),
    "control": (repacked(GOOD, 21, ">h", 0x20), ErrorCode.INVALID_RECORD),
    "offset": (repacked(GOOD, 0, ">q", 5), ErrorCode.INVALID_RECORD),
    "number": (batch_of(b"x", producer=(7, 0, -1)), ErrorCode.INVALID_RECORD),
    "large": (batch_of(bytes(5_000)), ErrorCode.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_batch_is_refused_and_a_good_one_beside_it_is_not(
    tmp_path: Path, what: str
) -> None:
    batch, code = BAD[what]
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 2, max_message_bytes="4000")
        partitions = [{"index": 0, "records": batch}, {"index": 1, "records": GOOD}]
        wanted = {"name": "orders", "partition_data": partitions}
        answer = await client.ask(ApiKey.PRODUCE, 9, {"acks": 1, "topic_data": [wanted]})
        bad, good = answer["responses"][0]["partition_responses"]
        assert (bad["error_code"], good["error_code"]) == (code, 0)
        assert bad["base_offset"] == -1
        assert server.core.store.max_offset("orders", 0) == 0


async def test_zstd_needs_a_version_that_knows_it(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        batch = batch_of(b"x", codec=Codec.ZSTD)
        old = await client.produce("orders", batch, version=6)
        assert old["error_code"] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert (await client.produce("orders", batch, version=7))["error_code"] == 0
        old = await client.fetch("orders", 0, version=9)
        assert old["error_code"] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert (await client.fetch("orders", 0, version=10))["error_code"] == 0


async def test_unknown_topics_partitions_and_acks_are_refused(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        nowhere = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await client.produce("nowhere", GOOD))["error_code"] == nowhere
        assert (await client.produce("orders", GOOD, 1))["error_code"] == nowhere
        assert (await client.produce("onelog_sys_tables", GOOD))["error_code"] == nowhere
        refused = await client.produce("orders", GOOD, acks=2)
        assert refused["error_code"] == ErrorCode.INVALID_REQUIRED_ACKS


async def test_a_topic_that_was_made_anew_has_the_partitions_of_the_new_one(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 2)
        assert (await client.produce("orders", GOOD, 1))["error_code"] == 0
        nowhere = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        server.broker.topics.delete(SELF, "orders")
        assert (await client.produce("orders", GOOD, 1))["error_code"] == nowhere
        await client.make_topic("orders", 1)
        assert (await client.produce("orders", GOOD, 1))["error_code"] == nowhere
        assert (await client.produce("orders", GOOD, 0))["error_code"] == 0


async def test_who_asks_for_all_replicas_waits_for_them_and_others_do_not(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", min_insync_replicas="3")
        assert (await client.produce("orders", GOOD))["error_code"] == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await client.produce("orders", GOOD, acks=1))["base_offset"] == 0
        replicas = give_replicas(server.core.durability)
        late = await client.produce("orders", GOOD)
        assert late["error_code"] == ErrorCode.REQUEST_TIMED_OUT
        assert (await client.produce("orders", GOOD, acks=1))["base_offset"] == 4
        replicas.in_sync = 2
        few = await client.produce("orders", GOOD)
        assert few["error_code"] == ErrorCode.NOT_ENOUGH_REPLICAS
        assert server.store.max_offset("orders", 0) == 6
        server.core.fence()
        gone = await client.produce("orders", GOOD, acks=1)
        assert gone["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_replicas_that_went_while_a_batch_was_stored_are_missed_behind_it(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        replicas = give_replicas(server.core.durability)
        with mock.patch.object(replicas, "available", side_effect=[True, False]):
            answer = await client.produce("orders", GOOD)
        assert answer["error_code"] == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert server.store.max_offset("orders", 0) == 2


async def test_without_acks_there_is_no_answer_and_an_error_closes(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        wanted = {"name": "orders", "partition_data": [{"index": 0, "records": GOOD}]}
        client.tell(ApiKey.PRODUCE, 9, {"acks": 0, "topic_data": [wanted]})
        assert (await client.fetch("orders", 0, max_wait_ms=20_000))["high_watermark"] == 2
        wanted["name"] = "nowhere"
        client.tell(ApiKey.PRODUCE, 9, {"acks": 0, "topic_data": [wanted]})
        assert await client.is_closed()


async def test_a_topic_may_stamp_messages_with_the_time_of_their_arrival(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", message_timestamp_type="LogAppendTime")
        answer = await client.produce("orders", GOOD)
        assert answer["log_append_time_ms"] > 1_600_000_000_000
        (batch,) = batches_in((await client.fetch("orders", 0))["records"])
        assert (batch.max_ms, batch.base_ms) == (answer["log_append_time_ms"], 1_000)
        assert batch.attributes & Attribute.APPEND_TIME


# -- producers that number their batches --------------------------------------------------------


async def new_id(client: RawClient) -> int:
    answer = await client.ask(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None})
    assert answer["error_code"] == 0
    found: int = answer["producer_id"]
    return found


async def test_a_batch_that_is_sent_twice_is_stored_once(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        id_ = await new_id(client)
        assert id_ != await new_id(client)
        first = batch_of(b"one", b"two", producer=(id_, 0, 0))
        assert (await client.produce("orders", first))["base_offset"] == 0
        assert (await client.produce("orders", batch_of(b"x")))["base_offset"] == 2
        again = await client.produce("orders", first)
        assert (again["error_code"], again["base_offset"]) == (0, 0)
        gap = await client.produce("orders", batch_of(b"four", producer=(id_, 0, 3)))
        assert gap["error_code"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await client.produce("orders", batch_of(b"3", producer=(id_, 0, 2))))[
            "base_offset"
        ] == 3
        anew = await client.produce("orders", batch_of(b"5", producer=(id_, 1, 0)))
        assert anew["base_offset"] == 4
        old = await client.produce("orders", batch_of(b"6", producer=(id_, 0, 3)))
        assert old["error_code"] == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("is_killed", [False, True])
async def test_numbers_are_known_after_a_restart(
    tmp_path: Path, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_killed:
        monkeypatch.setattr(BatchProducers, "keep", lambda self: False)
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        id_ = await new_id(client)
        for number in range(7):
            await client.produce("orders", batch_of(b"x", producer=(id_, 0, number)))
    async with kafka(tmp_path) as server, raw(server) as client:
        again = await client.produce("orders", batch_of(b"x", producer=(id_, 0, 4)))
        assert (again["error_code"], again["base_offset"]) == (0, 4)
        old = await client.produce("orders", batch_of(b"x", producer=(id_, 0, 1)))
        assert old["error_code"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        following = await client.produce("orders", batch_of(b"x", producer=(id_, 0, 7)))
        assert following["base_offset"] == 7
        assert await new_id(client) > id_


async def test_numbered_batches_in_one_tick_follow_each_other(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        id_ = await new_id(client)
        for number in range(5):
            data = {"index": 0, "records": batch_of(b"x", producer=(id_, 0, number))}
            wanted = {"name": "orders", "partition_data": [data]}
            client.tell(ApiKey.PRODUCE, 9, {"acks": -1, "topic_data": [wanted]})
        for number in range(5):
            answer = await client.hear(ApiKey.PRODUCE, 9)
            told = answer["responses"][0]["partition_responses"][0]
            assert (told["error_code"], told["base_offset"]) == (0, number)


async def test_librdkafka_produces_exactly_once(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        values: list[bytes | None] = [b"%d" % each for each in range(2_000)]
        sent = await asyncio.to_thread(
            produce, address(server), "orders", values, enable_idempotence=True
        )
        assert [offset for _, offset in sent.places] == list(range(2_000))
        assert server.core.batch_producers.stable_end("orders", 0, 2_000) == 2_000


async def test_with_sync_flush_batches_are_answered_when_they_are_on_disk(tmp_path: Path) -> None:
    async with kafka(tmp_path, store__flush="sync") as server, raw(server) as client:
        await client.make_topic("orders")
        id_ = await new_id(client)
        for number in range(20):
            data = {"index": 0, "records": batch_of(b"x", producer=(id_, 0, number))}
            wanted = {"name": "orders", "partition_data": [data]}
            client.tell(ApiKey.PRODUCE, 9, {"acks": -1, "topic_data": [wanted]})
        for number in range(20):
            answer = await client.hear(ApiKey.PRODUCE, 9)
            told = answer["responses"][0]["partition_responses"][0]
            assert (told["error_code"], told["base_offset"]) == (0, number)
        last = server.core.store.entry_at("orders", 0, 19)
        assert last is not None
        assert server.core.store.log.flushed >= last[0] + last[1]


async def test_a_topic_takes_batches_as_large_as_it_says_though_the_broker_takes_less(
    tmp_path: Path,
) -> None:
    large = bytes(5_000_000)
    async with kafka(tmp_path, store__body_bytes_max=1 << 20) as server, raw(server) as client:
        await client.make_topic("usual")
        await client.make_topic("large", max_message_bytes="6000000")
        for number, acks in enumerate((1, -1)):
            told = await client.produce("large", batch_of(large), acks=acks)
            assert (told["error_code"], told["base_offset"]) == (0, number)
        numbered = batch_of(large, producer=(7_000, 0, 0))
        assert (await client.produce("large", numbered))["error_code"] == 0
        told = await client.fetch("large", 0, max_bytes=20 << 20)
        assert values_in(told["records"])[0] == (0, large)
        for topic, size in (("usual", 2_000_000), ("large", 6_000_001)):
            told = await client.produce(topic, batch_of(bytes(size)))
            assert told["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
