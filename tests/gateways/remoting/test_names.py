"""RocketMQ's rules for names, in its words, over a core that knows none of them."""

from pathlib import Path

import msgspec
import pytest

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.gateways.remoting.live import bodies, broker, client

LONG = "g" * 121


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": LONG, "delayLevel": 0}),
        (
            RequestCode.POP_MESSAGE,
            {
                "consumerGroup": LONG,
                "topic": "t",
                "queueId": 0,
                "maxMsgNums": 1,
                "invisibleTime": 9_000,
                "pollTime": 0,
                "bornTime": 0,
                "initMode": 0,
            },
        ),
        (
            RequestCode.PEEK_MESSAGE,
            {"consumerGroup": LONG, "topic": "t", "queueId": 0, "maxMsgNums": 1},
        ),
        (RequestCode.POLLING_INFO, {"consumerGroup": LONG, "topic": "t", "queueId": 0}),
        (
            RequestCode.CLONE_GROUP_OFFSET,
            {"srcGroup": "g", "destGroup": LONG, "topic": "t", "offline": "false"},
        ),
    ],
)
async def test_a_group_that_rocketmq_refuses_does_not_come_into_being(
    tmp_path: Path, code: RequestCode, ext: dict[str, object]
) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        await one.send("t", b"x")
        answer = await one.ask(code, **ext)
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER,
            f"the specified group {LONG[:40]!r}... has 121 characters, is longer than group max "
            "length 120",
        )
        assert server.core.groups.get(LONG) is None


async def test_pulls_heartbeats_retries_and_modes_keep_to_the_rules_too(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        await one.send("t", b"x")
        for flags in (0, 4):
            pulled = await one.pull("t", 0, consumerGroup="a b", sysFlag=flags)
            assert pulled.code == ResponseCode.INVALID_PARAMETER
            assert "illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$" in (pulled.remark or "")
        assert (await one.heartbeat("c1", "a b", "t")).code == ResponseCode.SUCCESS
        retried = await one.send(f"%RETRY%{LONG}", b"x")
        assert retried.code == ResponseCode.INVALID_PARAMETER
        mode = {"topic": "t", "consumerGroup": "a b", "mode": "POP", "popShareQueueNum": 0}
        answer = await one.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, msgspec.json.encode(mode))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert {LONG, "a b"}.isdisjoint(each.name for each in server.core.groups.all())


async def test_what_other_protocols_named_can_be_used(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        assert (await one.send("a.b/c", b"x")).code == ResponseCode.INVALID_PARAMETER
        server.broker.topics.create(SELF, TopicConfig("a.b/c", 1, 1))
        server.core.groups.put(GroupConfig("my group@home"))
        assert (await one.send("a.b/c", b"x")).code == ResponseCode.SUCCESS
        assert bodies(await one.pull("a.b/c", 0, consumerGroup="my group@home")) == [b"x"]
