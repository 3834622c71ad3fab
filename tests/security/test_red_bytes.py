"""Bytes that claim to be more than they are, or are nothing: others go on, and nobody waits.

CPU time is that of the process, workers included: what is measured is much less than it was.
"""

import contextlib
import gzip
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from isal.isal_zlib import crc32

from onelog.core.access import SELF
from onelog.core.cursors.fetch import Cursor, Limits
from onelog.core.cursors.times import first_since, latest
from onelog.core.cursors.unpacking import KEPT_BYTES_MAX, ColdError
from onelog.core.filters.tags import subscribe
from onelog.core.routing import mqtt_forwarding
from onelog.errors import WireError
from onelog.gateways.kafka import batches, message_sets
from onelog.gateways.kafka.batches import BatchError, Budget
from onelog.gateways.mqtt.encoded_publish import PublishEncoder
from onelog.message import LogOffset, Message, NewMessage, QueueOffset, SysFlag
from onelog.record.compression import Compression, compress
from onelog.record.decode import decode_records
from onelog.record.entries import ENTRY
from onelog.record.forms import Form, amqp, kafka, mqtt
from onelog.record.forms.conversion import in_rocketmq_form
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral
from onelog.record.inner_batch import encode_batch
from onelog.store.reader import Fetched, FetchStatus
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.mqtt.codes import V5
from tests.core.leasing import LEASE_MS, TICK_MS, TOPIC, Reader, bodies, reading
from tests.core.queues.yard import Yard
from tests.core.world import SMALL_STORE, World, pulled
from tests.gateways.kafka.live import kafka as kafka_broker
from tests.gateways.kafka.raw import batch_of, raw
from tests.security.hostile import BAD, LOST, batch, record, stored, tiny, zigzag

A_WHILE = 1.0
"""Seconds of CPU time: several times what is needed, a small part of what was."""
MILLION = 1_000_000
LARGE_STORE = replace(SMALL_STORE, segment_bytes=64 << 20, queue_file_entries=300_000)


def cpu_seconds(call: Callable[[], object]) -> float:
    """What a call takes, whatever else this machine does."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


@pytest.fixture(scope="module")
def million() -> bytes:
    """A real batch of a million messages, in 1.4 MB."""
    return tiny(MILLION)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store", LARGE_STORE)
    made.topic("orders", 4)
    made.core.marked.mark("orders")
    yield made
    made.close()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path / "store", store_config=LARGE_STORE)
    yield made
    made.close()


def put(world: World, data: bytes, count: int | None = None, behind: bytes = b"behind") -> None:
    """A batch in a queue, and a plain message behind it."""
    world.store.append([stored("orders", data, count), NewMessage("orders", 0, behind)])


def read_on(world: World, begin: int = 0, **how: Any) -> tuple[list[bytes], int]:
    """Everything that a consumer gets who pulls again and again, and how often it asked."""
    found: list[bytes] = []
    at, asked, end = begin, 0, world.store.max_offset("orders", 0)
    while at < end and asked < 10_000:
        result = world.pull(at, **how)
        assert result.next_offset > at, (at, result.status)
        found += pulled(result)
        at, asked = result.next_offset, asked + 1
    return found, asked


# -- batches that are wrong inside ---------------------------------------------------------------


@pytest.mark.parametrize("name", BAD)
def test_who_pulls_gets_what_can_be_read_and_what_follows(world: World, name: str) -> None:
    data, good = BAD[name]
    put(world, data)
    assert read_on(world)[0] == [*good, b"behind"]


@pytest.mark.parametrize("name", LOST)
def test_who_pulls_gets_over_a_batch_of_which_nothing_can_be_read(world: World, name: str) -> None:
    put(world, LOST[name])
    found, _ = read_on(world)
    assert found[-1] == b"behind"
    assert len(found) <= 2  # As it is, once, whatever number it claims.
    assert world.broker.cursors.messages_passed_over >= 3


@pytest.mark.parametrize("name", [*BAD, *LOST])
def test_who_leases_gets_over_a_batch_that_is_wrong(tmp_path: Path, name: str) -> None:
    reader: Reader = reading(tmp_path)
    reader.world.core.marked.mark(TOPIC)
    data = BAD[name][0] if name in BAD else LOST[name]
    reader.world.store.append([stored(TOPIC, data), NewMessage(TOPIC, 0, b"behind")])
    found: list[bytes] = []
    for _ in range(20):
        held = reader.pop(4)
        found += bodies(held)
        reader.ack(*held)
        reader.world.advance(LEASE_MS + TICK_MS)
    assert found.count(b"behind") == 1
    assert len(found) <= 5
    reader.world.close()


@pytest.mark.parametrize("name", [*BAD, *LOST])
@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
def test_a_queue_gives_out_what_can_be_read_of_a_batch(
    yard: Yard, name: str, protocol: str
) -> None:
    queue = yard.queue("q")
    yard.core.marked.mark(queue.topic)
    data, good = BAD[name] if name in BAD else (LOST[name], [])
    yard.store.append([stored(queue.topic, data), NewMessage(queue.topic, 0, b"behind")])
    taker = yard.consume("q")
    for _ in range(20):
        yard.settle()
        queue.wake()
    if protocol == "amqp":
        found = [bytes(amqp.read(each[2]).body) for each in taker.got]
    else:
        letters = PublishEncoder()
        found = [bytes(letters.of(each[2], each[3]).payload) for each in taker.got]
        assert all(PublishEncoder().of(each[2], each[3]).plain(V5, 1) for each in taker.got)
    assert found == [*good, b"behind"]


@pytest.mark.parametrize("name", [*BAD, *LOST])
def test_what_is_converted_of_a_batch_is_a_record_again(name: str) -> None:
    """As Spark, the console and clients of RocketMQ take it apart."""
    data = BAD[name][0] if name in BAD else LOST[name]
    message = Message(
        "t",
        0,
        QueueOffset(0),
        LogOffset(0),
        memoryview(data),
        b"",
        0,
        Form.KAFKA.sys_flag,
        1,
        bytes(8),
        1,
        bytes(8),
        0,
        0,
        0,
        len(data),
    )
    found: list[Message] = []
    with contextlib.nullcontext() if name in BAD else pytest.raises(WireError):
        found = in_rocketmq_form(message)
    assert len(found) == len(BAD[name][1] if name in BAD else ())
    for each in found:
        assert 0 <= each.born_ms < 1 << 63


@pytest.mark.parametrize("version", [0, 2, 3])
async def test_an_old_consumer_gets_over_a_batch_that_is_wrong(
    tmp_path: Path, version: int
) -> None:
    async with kafka_broker(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        await client.produce("orders", batch_of(b"before"))
        data = LOST["no-gzip"]
        server.core.store.append([stored("orders", data)])
        await client.produce("orders", batch_of(b"behind"))
        at, found = 0, []
        for _ in range(10):
            answer = await client.fetch("orders", at, version=version)
            if not answer["records"]:
                break
            some = kafka.to_neutral(message_sets.to_batch(answer["records"], 0))
            found += [each.body for each in some if each.body]
            at = int.from_bytes(bytes(answer["records"])[:8], "big") + len(some)
            if at < 4 and b"behind" not in found:
                at = max(at, 4)
        assert b"behind" in found


# -- batches that hold very much ------------------------------------------------------------------


def test_a_pull_of_few_takes_few_messages_of_a_million(world: World, million: bytes) -> None:
    put(world, million)
    assert cpu_seconds(lambda: world.pull(0)) < A_WHILE  # To unpack it, in a worker.
    result = world.pull(32)
    assert cpu_seconds(lambda: [world.pull(at) for at in range(64, 1_000, 32)]) < A_WHILE
    assert [each.queue_offset for part in result.slices for each in decode_records(part)] == [
        *range(32, 64)
    ]


@pytest.mark.parametrize("begin", [MILLION - 5, MILLION // 2, 77_777])
def test_a_pull_in_the_middle_of_a_million_does_not_go_through_those_before(
    world: World, million: bytes, begin: int
) -> None:
    put(world, million)
    world.pull(0)
    assert cpu_seconds(lambda: world.pull(begin)) < 0.3
    (first, *_), *_ = [decode_records(part) for part in world.pull(begin).slices]
    assert first.queue_offset == begin


def test_an_entry_that_lies_in_the_middle_of_a_million_is_found(
    world: World, million: bytes
) -> None:
    put(world, million)
    queue = world.store.queue_table.find("orders", 0)
    assert queue is not None
    mending = world.store.mending
    assert not mending.mend(queue, 0, MILLION, surely=True)
    at, size, code = right = queue.entry(MILLION // 2)
    for wrong in ((at, size + 1, code), (at, size, code + 1), (at + 1, size, code), (-1, 0, 0)):
        queue.replace(MILLION // 2, ENTRY.pack(*wrong))
        assert mending.mend(queue, 0, MILLION, surely=True) or wrong[:2] == right[:2]
        assert queue.entry(MILLION // 2)[:2] == right[:2]


def test_one_answer_has_some_of_very_many_small_batches(world: World) -> None:
    for number in range(5):
        put(world, batch([record(0, b"%d" % number)], 1), behind=b"behind %d" % number)
    found = world.store.read("orders", 0, 0, 100).slices
    budget = Budget(records=3)
    messages_in = world.broker.cursors.messages_in
    some, _ = batches.pieces_of("orders", 0, 0, found, messages_in, budget)
    data = b"".join(some)
    assert b"behind 2" in data
    assert kafka.read_head(data).base_offset == 0
    assert b"behind 3" not in data
    assert batches.pieces_of("orders", 0, 6, found[3:], messages_in, budget)[0] == []


def test_who_wants_none_of_a_million_is_told_so_in_parts(world: World, million: bytes) -> None:
    put(world, million)
    wanted = subscribe("orders", "nothing")
    world.pull(0, subscription=wanted)
    result = world.pull(1_000, subscription=wanted)
    assert cpu_seconds(lambda: world.pull(5_000, subscription=wanted)) < 0.3
    assert result.status is FetchStatus.NO_MATCHED_MESSAGE
    assert 1_000 < result.next_offset < MILLION


def test_a_condition_on_a_million_has_its_share_of_time_only(world: World, million: bytes) -> None:
    put(world, million)
    condition = " OR ".join(f"a{number} CONTAINS 'x'" for number in range(40))
    wanted = subscribe("orders", condition, "SQL92")
    world.pull(0)
    assert cpu_seconds(lambda: world.pull(0, subscription=wanted)) < 0.3


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_many_bombs_take_the_memory_of_one(world: World, codec: Codec) -> None:
    data = kafka.from_neutral([Neutral(None, bytes(15 << 20), (), 1)] * 4, codec=codec)
    store = world.store
    for _ in range(5):
        store.append([stored("orders", data)])
    for at in range(0, 20, 4):
        assert world.pull(at).messages == 1
        kept = world.core.reader.unpacking._kept_bytes
        assert kept <= KEPT_BYTES_MAX


def test_a_message_that_unpacks_to_more_than_any_client_takes_is_passed_over(world: World) -> None:
    data = kafka.from_neutral([Neutral(None, bytes(20 << 20), (), 1)], codec=Codec.ZSTD)
    put(world, data)
    assert read_on(world)[0] == [b"behind"]
    assert world.broker.cursors.messages_passed_over == 1


def test_an_old_consumer_gets_as_many_bytes_as_it_asked_for() -> None:
    messages = ((offset, Neutral(None, bytes(1 << 20), (), 1)) for offset in range(64))
    assert len(message_sets.from_messages(messages, 1, 2 << 20)) < 3 << 20


async def test_an_old_fetch_of_a_bomb_is_as_large_as_was_asked_for(tmp_path: Path) -> None:
    data = kafka.from_neutral([Neutral(None, bytes(1 << 20), (), 1)] * 60, codec=Codec.ZSTD)
    async with kafka_broker(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        server.core.store.append([stored("orders", data)])
        for offset in (0, 7, 59):
            answer = await client.fetch("orders", offset, version=3)
            assert len(answer["records"]) < 3 << 20
            assert int.from_bytes(bytes(answer["records"])[:8], "big") == offset


@pytest.mark.parametrize("count", [500_000, 2_000])
def test_a_record_with_very_many_headers_is_delivered_without_most(
    world: World, count: int
) -> None:
    flood = record(0, b"flood", tail=zigzag(count) + b"\0\1" * count)
    put(world, batch([flood, record(1, b"next")], 2))
    assert cpu_seconds(lambda: world.pull(0)) < A_WHILE
    assert read_on(world)[0] == [b"flood", b"next", b"behind"]


# -- what producers claim -------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_million_messages_are_not_believed_of_a_hundred_kilobytes(codec: Codec) -> None:
    head = kafka.HEAD.pack(0, 49 + 125_000, 0, 2, 0, codec, MILLION - 1, 0, 0, -1, -1, -1, MILLION)
    data = kafka.with_crc(head + bytes(125_000))
    with pytest.raises(BatchError) as refused:
        batches.checked(memoryview(data), 9, 8 << 20)
    assert refused.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("claimed", [50, 5_000, 30_000])
async def test_a_packed_batch_that_counts_more_than_it_has_grows_nothing(
    tmp_path: Path, claimed: int
) -> None:
    body = Random(1).randbytes(claimed * 3 // 2)  # Which is not believed, nor refused unseen.
    packed = batch([record(0, body)], claimed, codec=Codec.GZIP)
    async with kafka_broker(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        answer = await client.produce("orders", packed)
        assert answer["error_code"] == ErrorCode.INVALID_RECORD
        assert "cannot hold" in answer["error_message"] or "cut off" in answer["error_message"]
        assert server.core.store.max_offset("orders", 0) == 0


async def test_a_real_million_is_counted_by_a_worker_and_taken(
    tmp_path: Path, million: bytes
) -> None:
    async with kafka_broker(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", max_message_bytes="2000000")
        assert (await client.produce("orders", million))["error_code"] == 0
        assert server.core.store.max_offset("orders", 0) == MILLION


async def test_requests_behind_a_batch_that_is_counted_keep_their_order(tmp_path: Path) -> None:
    packed = tiny(100_000)
    async with kafka_broker(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", max_message_bytes="2000000")
        for data in (packed, batch_of(b"one"), packed, batch_of(b"two")):
            partition = {"index": 0, "records": data}
            client.tell(
                ApiKey.PRODUCE,
                9,
                {
                    "transactional_id": None,
                    "acks": -1,
                    "timeout_ms": 1_000,
                    "topic_data": [{"name": "orders", "partition_data": [partition]}],
                },
            )
        offsets = []
        for _ in range(4):
            answer = await client.hear(ApiKey.PRODUCE, 9)
            offsets.append(answer["responses"][0]["partition_responses"][0]["base_offset"])
        assert offsets == [0, 100_000, 100_001, 200_001]


async def test_a_compacted_topic_looks_for_keys_in_a_worker(tmp_path: Path, million: bytes) -> None:
    async with kafka_broker(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", max_message_bytes="2000000", cleanup_policy="compact")
        answer = await client.produce("orders", million)
        assert answer["error_code"] == ErrorCode.INVALID_RECORD
        assert len(answer["record_errors"]) == 100  # Of a million.
        data = memoryview(million)
        assert cpu_seconds(lambda: batches.look_into(data, kafka.read_head(data))) < 0.2


@pytest.mark.parametrize("count", [3, 300])
def test_old_messages_that_are_packed_have_one_limit_for_all(count: int) -> None:

    def message(value: bytes, attributes: int) -> bytes:
        body = bytes((1, attributes)) + bytes(8) + b"\xff\xff\xff\xff"
        body += len(value).to_bytes(4, "big") + value
        body = crc32(body).to_bytes(4, "big") + body
        return bytes(8) + len(body).to_bytes(4, "big") + body

    packed = gzip.compress(message(bytes(15 << 20), 0), 1)
    data = memoryview(message(packed, Codec.GZIP) * count)
    assert not message_sets.is_little(data)

    def attempt() -> None:
        with pytest.raises(BatchError) as refused:
            message_sets.to_batch(data, 0)
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE

    assert cpu_seconds(attempt) < A_WHILE


def test_old_messages_that_are_packed_are_stored_packed() -> None:

    def message(value: bytes, attributes: int) -> bytes:
        body = bytes((1, attributes)) + bytes(8) + b"\xff\xff\xff\xff"
        body += len(value).to_bytes(4, "big") + value
        body = crc32(body).to_bytes(4, "big") + body
        return bytes(8) + len(body).to_bytes(4, "big") + body

    data = message(gzip.compress(message(bytes(900), 0) * 1_000), Codec.GZIP)
    packed = message_sets.to_batch(memoryview(data), 0)
    assert len(packed) < 4 * len(data)
    assert [each.body for each in kafka.to_neutral(packed)] == [bytes(900)] * 1_000


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_the_index_of_a_batch_takes_twenty_times_its_bytes_at_most(codec: Codec) -> None:
    head = kafka.HEAD.pack(0, 49 + 10_000, 0, 2, 0, codec, 10_000, 0, 0, -1, -1, -1, 10_001)
    with pytest.raises(BatchError) as refused:
        batches.checked(memoryview(kafka.with_crc(head + bytes(10_000))), 9, 8 << 20)
    assert refused.value.code == ErrorCode.INVALID_RECORD


# -- other forms ----------------------------------------------------------------------------------


def _packed_message(world: World, body: bytes, flags: int = 0) -> Fetched:
    packed = compress(body, Compression.ZSTD)
    flags |= int(SysFlag.COMPRESSED) | Compression.ZSTD << 8
    world.store.append([NewMessage("orders", 0, packed, sys_flag=flags)])
    limits = Limits(32, 1 << 20, 1 << 20, 1, True, True)
    ((result,),) = world.fetch([Cursor(None, "orders", 0, 0)], limits, 0)
    assert isinstance(result, Fetched)
    return result


def test_a_packed_message_of_rocketmq_is_unpacked_for_kafka_in_a_worker(world: World) -> None:
    result = _packed_message(world, bytes(8 << 20))
    broker, found = world.broker, result.slices
    with pytest.raises(ColdError) as cold:
        batches.pieces_of("orders", 0, 0, found, broker.cursors.messages_in, Budget())
    done: list[bool] = []
    broker.cursors.prepare(cold.value, lambda: done.append(True))
    pieces, _ = batches.pieces_of("orders", 0, 0, found, broker.cursors.messages_in, Budget())
    assert done
    (message,) = kafka.to_neutral(b"".join(pieces))
    assert message.body == bytes(8 << 20)


def test_a_bomb_of_rocketmq_reaches_kafka_s_readers_as_it_is(world: World) -> None:
    result = _packed_message(world, bytes(60 << 20))
    broker, found = world.broker, result.slices
    with pytest.raises(ColdError) as cold:
        batches.pieces_of("orders", 0, 0, found, broker.cursors.messages_in, Budget())
    broker.cursors.prepare(cold.value, lambda: None)
    pieces, _ = batches.pieces_of("orders", 0, 0, found, broker.cursors.messages_in, Budget())
    assert len(b"".join(pieces)) < 1 << 20


def test_an_inner_batch_of_a_million_is_read_some_at_a_time(world: World) -> None:
    flags = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED)
    body = encode_batch([(0, b"", b"")]) * MILLION
    message = NewMessage(
        "orders",
        0,
        compress(body, Compression.ZSTD),
        sys_flag=flags | Compression.ZSTD << 8,
        inner_count=MILLION,
    )
    world.store.append([message])
    limits = Limits(32, 1 << 20, 1 << 20, 1, True, True)
    ((result,),) = world.fetch([Cursor(None, "orders", 0, 0)], limits, 0)
    assert isinstance(result, Fetched)
    broker = world.broker
    with pytest.raises(ColdError) as cold:
        batches.pieces_of("orders", 0, 0, result.slices, broker.cursors.messages_in, Budget())
    broker.cursors.prepare(cold.value, lambda: None)
    for offset in (0, 500_000, MILLION - 10):

        def convert(begin: int = offset) -> None:
            found = batches.pieces_of(
                "orders", 0, begin, result.slices, broker.cursors.messages_in, Budget()
            )[0]
            assert kafka.read_head(b"".join(found)).base_offset == begin

        assert cpu_seconds(convert) < 0.3


TIMES = [-(1 << 63), -1, (1 << 63) - 1, 1 << 62]


def test_times_of_rocketmq_s_producers_are_times_in_every_form(world: World) -> None:
    neutrals = [Neutral(None, b"x", (), time_ms) for time_ms in TIMES]
    found = kafka.to_neutral(kafka.from_neutral(neutrals))
    assert [each.body for each in found] == [b"x"] * 4
    assert all(0 <= each.time_ms <= 1 << 62 for each in found)
    assert all(mqtt.read(mqtt.from_neutral(each)).time_ms >= 0 for each in neutrals)


def test_a_batch_of_a_million_in_a_queue_is_given_out_some_at_a_time(
    yard: Yard, million: bytes
) -> None:
    queue = yard.queue("q")
    yard.core.marked.mark(queue.topic)
    yard.store.append([stored(queue.topic, million)])
    taker = yard.consume("q")

    def deliver() -> None:
        for _ in range(5):
            queue.wake()
            if yard.soon:
                yard.end_tick()

    assert cpu_seconds(deliver) < 2 * A_WHILE
    assert 0 < len(taker.got) < MILLION


def test_one_message_of_a_million_is_sent_back_alone(world: World, million: bytes) -> None:
    put(world, million)
    world.core.groups.require("readers")
    (first, *_), *_ = [decode_records(part) for part in world.pull(999_990).slices]

    assert first.unique_key
    unique_key = first.unique_key

    def send_back() -> None:
        world.broker.publish.send_back(
            SELF, "readers", first.log_offset, -1, world.on_stored, unique_key=unique_key
        )
        world.end_tick()

    assert cpu_seconds(send_back) < 0.3
    assert len(world.messages("%DLQ%readers")) == 1


def test_an_offset_by_time_is_found_beside_a_batch_that_is_wrong(world: World) -> None:
    put(world, LOST["no-gzip"])
    assert first_since(world.store, "orders", 0, 0) is not None
    assert latest(world.store, "orders", 0) is not None
    places: Sequence[Any] = [first_since(world.store, "orders", 0, 1 << 50)]
    assert places == [None]


def test_a_million_that_flow_out_to_subscribers_go_some_at_a_time(
    yard: Yard, million: bytes
) -> None:
    yard.topic("orders", 1)
    yard.broker.topics.mqtt_forwarding.add(SELF, "orders", "a.b")
    queue = yard.queue("q")
    yard.broker.publish.routing.bind(SELF, "/", "amq.topic", "queue", "q", "a.#")
    yard.broker.publish.send(SELF, stored("orders", million), yard.on_stored)
    yard.broker.publish.send(SELF, NewMessage("orders", 0, b"behind"), yard.on_stored)
    assert cpu_seconds(yard.end_tick) < 2 * A_WHILE
    for _ in range(3):
        yard.advance(1)
        yard.end_tick()
    assert 200 <= queue.ready < 1_000


def test_a_small_batch_flows_out_before_what_follows(yard: Yard) -> None:
    yard.topic("orders", 1)
    yard.broker.topics.mqtt_forwarding.add(SELF, "orders", "a.b")
    yard.queue("q")
    yard.broker.publish.routing.bind(SELF, "/", "amq.topic", "queue", "q", "a.#")
    for data in (tiny(150), tiny(3, Codec.NONE)):
        yard.broker.publish.send(SELF, stored("orders", data), yard.on_stored)
    yard.broker.publish.send(SELF, NewMessage("orders", 0, b"behind"), yard.on_stored)
    for _ in range(5):
        yard.settle()
        yard.advance(1)
    assert yard.counts("q")[0] == 154


def test_a_batch_that_flows_out_to_the_log_takes_no_more_there_than_so_many_times_its_bytes(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mqtt_forwarding, "_GROWN_TIMES", 1)
    monkeypatch.setattr(mqtt_forwarding, "_GROWN_BYTES_MIN", 40_000)
    monkeypatch.setattr(mqtt_forwarding, "_PAUSE_MS", 0)
    monkeypatch.setattr(mqtt_forwarding, "_AT_ONCE", 100)
    batch = tiny(2_000)
    yard.topic("orders", 1)
    yard.broker.topics.mqtt_forwarding.add(SELF, "orders", "a.b")
    yard.queue("q", durable=True)
    yard.broker.publish.routing.bind(SELF, "/", "amq.topic", "queue", "q", "a.#")
    yard.broker.publish.send(SELF, stored("orders", batch), yard.on_stored)
    yard.broker.publish.send(SELF, NewMessage("orders", 0, b"behind"), yard.on_stored)
    for _ in range(30):
        yard.settle()
        yard.advance(1)
    assert 100 < yard.counts("q")[0] < 400  # And the one behind it, which has room of its own.
    assert "do not all go on" in caplog.text
