"""Queues shared out by the broker."""

import json
from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.core.world import entries_of
from tests.gateways.remoting.live import Client, broker, client

GROUP, TOPIC = "readers", "orders"


async def ask(words: Client, client_id: str, **changed: object) -> Command:
    """QUERY_ASSIGNMENT."""
    body = {
        "topic": TOPIC,
        "consumerGroup": GROUP,
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    return await words.ask(RequestCode.QUERY_ASSIGNMENT, json.dumps({**body, **changed}).encode())


async def assigned(
    words: Client, client_id: str, **changed: object
) -> list[tuple[int, str]] | None:
    answer = await ask(words, client_id, **changed)
    assert answer.code == ResponseCode.SUCCESS
    found = json.loads(bytes(answer.body)).get("messageQueueAssignments")
    if found is None:
        return None
    assert {each["messageQueue"]["brokerName"] for each in found} <= {"broker-a"}
    assert {each["messageQueue"]["topic"] for each in found} <= {changed.get("topic", TOPIC)}
    return [(each["messageQueue"]["queueId"], each["mode"]) for each in found]


async def set_mode(words: Client, mode: str = "POP", share: int = 0, **changed: object) -> Command:
    """SET_MESSAGE_REQUEST_MODE."""
    body = {"topic": TOPIC, "consumerGroup": GROUP, "mode": mode, "popShareQueueNum": share}
    return await words.ask(
        RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps({**body, **changed}).encode()
    )


def prepare(server: BrokerServer, queues: int = 5) -> None:
    server.broker.topics.create(SELF, TopicConfig(TOPIC, queues, queues))


async def test_members_that_pull_share_the_queues(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, broker__name="broker-a") as server,
        client(server) as one,
        client(server) as two,
    ):
        prepare(server)
        await one.heartbeat("client-1", GROUP, TOPIC)
        await two.heartbeat("client-2", GROUP, TOPIC)
        assert await assigned(one, "client-1") == [(0, "PULL"), (1, "PULL"), (2, "PULL")]
        assert await assigned(two, "client-2") == [(3, "PULL"), (4, "PULL")]
        circle = await assigned(two, "client-2", strategyName="AVG_BY_CIRCLE")
        assert circle == [(1, "PULL"), (3, "PULL")]
        everything = await assigned(two, "client-2", messageModel="BROADCASTING")
        assert everything == [(queue, "PULL") for queue in range(5)]
        assert await assigned(one, "stranger") == []


async def test_members_without_the_topic_get_none_of_its_queues(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, broker__name="broker-a") as server,
        client(server) as one,
        client(server) as two,
        client(server) as other,
    ):
        prepare(server)
        await other.heartbeat("client-0", GROUP, "bills")
        await one.heartbeat("client-1", GROUP, TOPIC)
        await two.heartbeat("client-2", GROUP, TOPIC)
        assert await assigned(one, "client-1") == [(0, "PULL"), (1, "PULL"), (2, "PULL")]
        assert await assigned(two, "client-2") == [(3, "PULL"), (4, "PULL")]
        # It has asked before its heartbeat told the broker that it wants the topic now.
        assert await assigned(other, "client-0") == [(0, "PULL"), (1, "PULL")]


async def test_members_that_pop_take_from_all_queues_at_once(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as words:
        prepare(server)
        await words.heartbeat("client-1", GROUP, TOPIC)
        assert (await set_mode(words)).code == ResponseCode.SUCCESS
        assert await assigned(words, "client-1") == [(-1, "POP")]
        retry = f"%RETRY%{GROUP}"
        assert await assigned(words, "client-1", topic=retry) == [(0, "PULL")]
        await set_mode(words, "PULL")
        assert len(await assigned(words, "client-1") or ()) == 5


async def test_a_share_gives_a_member_the_queues_of_the_next_ones_too(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server:
        prepare(server, 4)
        async with (
            client(server) as a,
            client(server) as b,
            client(server) as c,
            client(server) as d,
        ):
            for n, words in enumerate((a, b, c, d)):
                await words.heartbeat(f"client-{n}", GROUP, TOPIC)
            await set_mode(a, share=1)
            assert await assigned(a, "client-0") == [(0, "POP"), (1, "POP")]
            assert await assigned(d, "client-3") == [(3, "POP"), (0, "POP")]


async def test_where_nothing_can_be_said_the_member_keeps_what_it_has(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as words:
        prepare(server)
        assert await assigned(words, "client-1") is None, "the group has no members"
        await words.heartbeat("client-1", GROUP, TOPIC)
        assert await assigned(words, "client-1", topic="nowhere") is None
        assert await assigned(words, "client-1", strategyName="MACHINE_ROOM") is None
        assert bytes((await ask(words, "client-1", topic="nowhere")).body) == b"{}"


async def test_a_light_queue_is_one_queue(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as words:
        await words.heartbeat("client-1", GROUP, "%LMQ%x")
        assert await assigned(words, "client-1", topic="%LMQ%x") == [(0, "PULL")]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": f"%RETRY%{GROUP}"}, ResponseCode.NO_PERMISSION),
        ({"consumerGroup": "no group"}, ResponseCode.INVALID_PARAMETER),
        ({"mode": "PUSH"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_mode_that_cannot_be_set_is_refused(
    tmp_path: Path, changed: dict[str, object], code: ResponseCode
) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as words:
        prepare(server)
        await words.heartbeat("client-1", GROUP, TOPIC)
        answer = await set_mode(words, **changed)  # type: ignore[arg-type]
        assert answer.code == code
        assert answer.remark
        assert entries_of(server.core.request_modes) == {}


async def test_a_mode_can_be_set_before_the_group_is_there(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as words:
        prepare(server)
        assert (await set_mode(words)).code == ResponseCode.SUCCESS
        await words.heartbeat("client-1", GROUP, TOPIC)
        assert await assigned(words, "client-1") == [(-1, "POP")]


async def test_a_mode_survives_a_restart(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as words:
        prepare(server)
        await words.heartbeat("client-1", GROUP, TOPIC)
        await set_mode(words)
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as words:
        await words.heartbeat("client-1", GROUP, TOPIC)
        assert await assigned(words, "client-1") == [(-1, "POP")]


async def test_the_default_mode_can_be_changed_while_running(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as one:
        prepare(server, queues=2)
        await one.heartbeat("client-1", GROUP, TOPIC)
        assert await assigned(one, "client-1") == [(0, "PULL"), (1, "PULL")]
        answer = await one.ask(RequestCode.UPDATE_BROKER_CONFIG, b"defaultMessageRequestMode=POP\n")
        assert answer.code == ResponseCode.SUCCESS
        assert await assigned(one, "client-1") == [(-1, "POP")]
        answer = await one.ask(RequestCode.GET_BROKER_CONFIG)
        assert b"\ndefaultMessageRequestMode=POP\n" in bytes(answer.body)
