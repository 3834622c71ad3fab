"""Fetching: whole batches, limits, waiting, sessions, and what came by RocketMQ's protocol."""

import asyncio
from pathlib import Path

import pytest

from onelog.gateways.kafka.batches import CONVERTED_MAX
from onelog.record.forms.kafka import Codec
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import RawClient, batch_of, batches_in, fetch_fields, raw, values_in
from tests.gateways.remoting.live import client as remoting_client
from tests.waiting import eventually

BATCH = batch_of(b"one", b"two", b"three", codec=Codec.GZIP)


async def test_a_fetch_from_inside_a_batch_gets_the_whole_of_it(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        for _ in range(3):
            await client.produce("orders", BATCH)
        found = await client.fetch("orders", 4)
        heads = batches_in(found["records"])
        assert [(each.base_offset, each.leader_epoch) for each in heads] == [(3, 0), (6, 0)]
        assert (found["high_watermark"], found["last_stable_offset"]) == (9, 9)
        assert (await client.fetch("orders", 9))["records"] == b""


@pytest.mark.parametrize("offset", [-1, 10, 1 << 40])
async def test_an_offset_that_is_not_there_is_out_of_range(tmp_path: Path, offset: int) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        empty = await client.fetch("orders", 0)
        assert (empty["error_code"], empty["high_watermark"]) == (0, 0)
        await client.produce("orders", BATCH)
        found = await client.fetch("orders", offset)
        assert found["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_limits_end_an_answer_after_whole_batches_and_never_before_the_first(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 2)
        large = batch_of(bytes(10_000))
        for _ in range(4):
            await client.produce("orders", large)
            await client.produce("orders", large, 1)
        one = await client.fetch("orders", 0, max_bytes=100)
        assert len(batches_in(one["records"])) == 1
        both = await client.ask(
            ApiKey.FETCH, 12, fetch_fields("orders", [(0, 0), (1, 0)], max_bytes=35_000)
        )
        counts = [len(batches_in(each["records"])) for each in both["responses"][0]["partitions"]]
        assert counts == [3, 0]


async def test_a_fetch_waits_for_enough_bytes_or_its_time(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client, raw(server) as other:
        await client.make_topic("orders")
        held = fetch_fields("orders", [(0, 0)], max_wait_ms=20_000, min_bytes=1_000)
        client.tell(ApiKey.FETCH, 12, held)
        await eventually(lambda: len(server.core.waiting) == 1, "held")
        await other.produce("orders", batch_of(bytes(100)))
        await asyncio.sleep(0)
        await other.produce("orders", batch_of(bytes(2_000)))
        answer = await client.hear(ApiKey.FETCH, 12)
        assert len(batches_in(answer["responses"][0]["partitions"][0]["records"])) == 2
        late = await client.fetch("orders", 0, max_wait_ms=50, min_bytes=1 << 19)
        assert len(batches_in(late["records"])) == 2, "what there is, when time is up"


async def test_a_leader_of_another_epoch_is_not_this_one(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        fields = fetch_fields("orders", [(0, 0)])
        fields["topics"][0]["partitions"][0]["current_leader_epoch"] = 1
        answer = await client.ask(ApiKey.FETCH, 12, fields)
        found = answer["responses"][0]["partitions"][0]
        assert found["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_topics_are_known_by_ids_too(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        await client.produce("orders", BATCH)
        told = await client.ask(ApiKey.METADATA, 12, {"topics": None})
        (topic,) = told["topics"]
        fields = fetch_fields("", [(0, 0)])
        fields["topics"][0]["topic_id"] = topic["topic_id"]
        answer = await client.ask(ApiKey.FETCH, 16, fields)
        assert answer["responses"][0]["topic_id"] == topic["topic_id"]
        assert len(values_in(answer["responses"][0]["partitions"][0]["records"])) == 3
        fields["topics"][0]["topic_id"] = bytes(15) + b"x"
        answer = await client.ask(ApiKey.FETCH, 16, fields)
        found = answer["responses"][0]["partitions"][0]
        assert found["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


# -- sessions ------------------------------------------------------------------------------------


async def step(
    client: RawClient, session: int, epoch: int, places: list[tuple[int, int]], **changed: int
) -> Fields:
    fields = fetch_fields("orders", places, session_id=session, session_epoch=epoch, **changed)
    return await client.ask(ApiKey.FETCH, 12, fields if places else {**fields, "topics": []})


def partitions_in(answer: Fields) -> dict[int, int]:
    """The partitions in an answer, and how many messages each has."""
    return {
        each["partition_index"]: len(values_in(each["records"]))
        for topic in answer["responses"]
        for each in topic["partitions"]
    }


async def test_a_session_is_told_only_what_is_new(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 3)
        await client.produce("orders", BATCH, 1)
        begun = await step(client, 0, 0, [(0, 0), (1, 0), (2, 0)])
        session = begun["session_id"]
        assert session > 0
        assert partitions_in(begun) == {0: 0, 1: 3, 2: 0}
        assert partitions_in(await step(client, session, 1, [(1, 3)])) == {}
        await client.produce("orders", BATCH, 2)
        assert partitions_in(await step(client, session, 2, [])) == {2: 3}
        fields = fetch_fields("orders", [(2, 3)], session_id=session, session_epoch=3)
        fields["forgotten_topics_data"] = [{"topic": "orders", "partitions": [0]}]
        assert partitions_in(await client.ask(ApiKey.FETCH, 12, fields)) == {}
        await client.produce("orders", BATCH, 0)
        assert partitions_in(await step(client, session, 4, [])) == {}, "0 is forgotten"
        await step(client, session, -1, [(0, 0)])
        gone = await step(client, session, 5, [])
        assert gone["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_session_counts_its_fetches(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        session = (await step(client, 0, 0, [(0, 0)]))["session_id"]
        wrong = await step(client, session, 2, [])
        assert wrong["error_code"] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (await step(client, session, 1, []))["error_code"] == 0


# -- both protocols ------------------------------------------------------------------------------


async def test_messages_of_rocketmqs_producers_are_batches_between_the_others(
    tmp_path: Path,
) -> None:
    async with (
        kafka(tmp_path) as server,
        raw(server) as client,
        remoting_client(server) as rocketmq,
    ):
        await client.make_topic("orders")
        await client.produce("orders", BATCH)
        for each in (b"four", b"five"):
            await rocketmq.send("orders", each, {"KEYS": "k", "colour": "red"})
        await client.produce("orders", BATCH)
        found = await client.fetch("orders", 0)
        heads = batches_in(found["records"])
        assert [(each.base_offset, each.records) for each in heads] == [(0, 3), (3, 2), (5, 3)]
        assert values_in(found["records"])[3:5] == [(3, b"four"), (4, b"five")]
        tail = await client.fetch("orders", 4)
        assert values_in(tail["records"])[0] == (4, b"five")


async def test_many_messages_of_rocketmqs_producers_come_some_at_a_time(tmp_path: Path) -> None:
    count = CONVERTED_MAX + 50
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        async with remoting_client(server) as rocketmq:
            await asyncio.gather(*(rocketmq.send("orders", b"x") for _ in range(count)))
        first = await client.fetch("orders", 0)
        assert len(values_in(first["records"])) == CONVERTED_MAX
        second = await client.fetch("orders", CONVERTED_MAX)
        assert len(values_in(second["records"])) == 50
