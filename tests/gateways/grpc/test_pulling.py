"""Consumers that keep offsets: PullMessage, and questions about offsets, by hand."""

import time
from pathlib import Path
from typing import Any

from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code, QueryOffsetPolicy
from onelog.wire.remoting.codes import RequestCode
from tests.gateways.grpc.live import address, grpc_broker, make_group, make_topic
from tests.gateways.grpc.raw import RawClient
from tests.gateways.remoting.live import client

TOPIC, GROUP = "pulled", "pullers"


def about(kind: str, *, topic: str = TOPIC, queue: int = 0, **fields: Any) -> Any:
    """A request that names a queue and, if it can, the group."""
    request = getattr(messages, f"{kind}Request")(**fields)
    request.message_queue.topic.name, request.message_queue.id = topic, queue
    if "group" in request.DESCRIPTOR.fields_by_name:
        request.group.name = GROUP
    return request


async def pull(caller: RawClient, offset: int, expression: str = "*", **fields: Any) -> Any:
    """The code, the bodies and the next offset."""
    request = about("PullMessage", offset=offset, batch_size=10, **fields)
    request.filter_expression.type, request.filter_expression.expression = 1, expression
    first, *others, last = await caller.stream("PullMessage", request)
    return Code(first.status.code), [each.message.body for each in others], last.next_offset


async def test_a_pull_gives_messages_from_an_offset_on(tmp_path: Path) -> None:
    async with (
        grpc_broker(tmp_path) as server,
        client(server) as remoting,
        RawClient(address(server)) as caller,
    ):
        make_topic(server, TOPIC, queues=1)
        make_group(server, GROUP)
        assert await pull(caller, 0) == (Code.MESSAGE_NOT_FOUND, [], 0)
        for number in range(4):
            tag = "even" if number % 2 == 0 else "odd"
            await remoting.send(TOPIC, b"%d" % number, {"UNIQ_KEY": f"K{number}", "TAGS": tag})
        assert await pull(caller, 1) == (Code.OK, [b"1", b"2", b"3"], 4)
        assert await pull(caller, 0, "odd") == (Code.OK, [b"1", b"3"], 4)
        assert await pull(caller, 4) == (Code.MESSAGE_NOT_FOUND, [], 4)
        assert (await pull(caller, 9))[0] is Code.ILLEGAL_OFFSET
        (refused,) = await caller.stream("PullMessage", about("PullMessage", offset=-1))
        assert refused.status.code == Code.ILLEGAL_OFFSET
        (refused,) = await caller.stream("PullMessage", about("PullMessage", topic="nowhere"))
        assert refused.status.code == Code.TOPIC_NOT_FOUND


async def test_offsets_are_kept_for_both_protocols(tmp_path: Path) -> None:
    async with (
        grpc_broker(tmp_path) as server,
        client(server) as remoting,
        RawClient(address(server)) as caller,
    ):
        make_topic(server, TOPIC, queues=2)
        make_group(server, GROUP)
        await remoting.send(TOPIC, b"x", {"UNIQ_KEY": "K"})
        got = await caller.call("GetOffset", about("GetOffset"))
        assert got.status.code == Code.OFFSET_NOT_FOUND
        for offset in (1, 0):
            told = await caller.call("UpdateOffset", about("UpdateOffset", offset=offset))
            assert told.status.code == Code.OK
            got = await caller.call("GetOffset", about("GetOffset"))
            assert (got.status.code, got.offset) == (Code.OK, offset)
            answer = await remoting.ask(
                RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic=TOPIC, queueId=0
            )
            assert answer.ext["offset"] == str(offset)
        told = await caller.call("UpdateOffset", about("UpdateOffset", topic="nowhere"))
        assert told.status.code == Code.TOPIC_NOT_FOUND
        got = await caller.call("GetOffset", about("GetOffset", topic="nowhere"))
        assert got.status.code == Code.TOPIC_NOT_FOUND


async def test_where_a_queue_begins_and_ends_and_what_came_when(tmp_path: Path) -> None:
    async with (
        grpc_broker(tmp_path) as server,
        client(server) as remoting,
        RawClient(address(server)) as caller,
    ):
        make_topic(server, TOPIC, queues=1)

        async def query(policy: int, time_ms: int | None = None, **fields: Any) -> tuple[int, int]:
            request = about("QueryOffset", query_offset_policy=policy, **fields)
            if time_ms is not None:
                request.timestamp.FromMilliseconds(time_ms)
            answer = await caller.call("QueryOffset", request)
            return answer.status.code, answer.offset

        for number in range(3):
            await remoting.send(TOPIC, b"x", {"UNIQ_KEY": f"K{number}"})
        stored_ms = int(time.time() * 1000)
        assert await query(QueryOffsetPolicy.BEGINNING) == (Code.OK, 0)
        assert await query(QueryOffsetPolicy.END) == (Code.OK, 3)
        assert await query(QueryOffsetPolicy.TIMESTAMP, 1_000) == (Code.OK, 0)
        assert await query(QueryOffsetPolicy.TIMESTAMP, stored_ms + 60_000) == (Code.OK, 3)
        bad = Code.BAD_REQUEST, 0
        assert await query(QueryOffsetPolicy.TIMESTAMP) == bad
        assert await query(9) == bad
        assert await query(QueryOffsetPolicy.END, queue=7) == bad
        assert await query(QueryOffsetPolicy.END, topic="nowhere") == (Code.TOPIC_NOT_FOUND, 0)
