"""Questions to live clients."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.membership.members import Client, ConsumerData
from onelog.gateways.remoting.admin import client_relay
from onelog.message import message_id
from onelog.net.peer import Peer
from onelog.record.decode import decode_messages
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.stats import ConsumerStatus, DirectConsumption
from tests.gateways.remoting.desk import Desk, open_desk

INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
QUEUE = MessageQueue(broker_name="broker-a", queue_id=0, topic="orders")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        opened.world.topic("orders", 1, sys_flag=2)
        await opened.connect()
        yield opened


async def test_what_a_client_says_reaches_the_tool_as_it_is(desk: Desk) -> None:
    member = await desk.member("c1", "readers", "orders")
    body = b'{"jstack":"main"}' * 1_000
    member.respond = lambda peer, command: peer.reply(command, 0, {"a": "b"}, "fine", body)
    answer = await desk.ask(INFO, consumerGroup="readers", clientId="c1", jstackEnable="true")
    assert (answer.code, answer.ext, answer.remark) == (0, {"a": "b"}, "fine")
    assert bytes(answer.body) == body
    (asked,) = member.asked
    assert (asked.code, asked.is_oneway) == (INFO, False)
    assert asked.ext == {"consumerGroup": "readers", "clientId": "c1", "jstackEnable": "true"}


async def test_a_client_may_say_no(desk: Desk) -> None:
    member = await desk.member("c1", "readers", "orders")
    member.respond = lambda peer, command: peer.refuse_unknown(command)
    answer = await desk.ask(INFO, consumerGroup="readers", clientId="c1")
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_who_is_not_there_cannot_be_asked(desk: Desk) -> None:
    await desk.member("old", "readers", "orders", version=61)
    desk.world.broker.groups.heartbeat(
        SELF,
        Client("kafka", "a channel of another protocol", version=99),
        [ConsumerData("readers")],
        [],
    )
    for client_id, reason in (("c1", "not online"), ("old", "too low"), ("kafka", "protocol")):
        answer = await desk.ask(INFO, consumerGroup="readers", clientId=client_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert reason in (answer.remark or "")
    answer = await desk.ask(INFO, consumerGroup="readers")
    assert answer.remark == "the custom field <clientId> is null"


async def test_a_client_that_does_not_answer_in_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_relay, "RELAY_TIMEOUT_MS", 50)
    await desk.member("c1", "readers", "orders")
    answer = await desk.ask(INFO, consumerGroup="readers", clientId="c1")
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "consumer <readers> <c1> Timeout" in (answer.remark or "")


async def test_a_client_that_goes_away_while_it_is_asked(desk: Desk) -> None:
    member = await desk.member("c1", "readers", "orders")
    member.respond = lambda peer, _: peer.connection.abort()
    answer = await desk.ask(INFO, consumerGroup="readers", clientId="c1")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "invoke consumer <readers> <c1> Exception" in (answer.remark or "")


async def test_a_tool_that_goes_away_before_the_answer_harms_nobody(desk: Desk) -> None:
    member = await desk.member("c1", "readers", "orders")
    asked = asyncio.Event()
    waiting: list[tuple[Peer, Command]] = []

    def hesitate(peer: Peer, command: Command) -> None:
        waiting.append((peer, command))
        asked.set()

    member.respond = hesitate
    tool = await desk.connect()
    tool.oneway(INFO, {"consumerGroup": "readers", "clientId": "c1"})
    tool.request(
        INFO, {"consumerGroup": "readers", "clientId": "c1"}, b"", 60_000, lambda result: None
    )
    while len(waiting) < 2:
        asked.clear()
        await asked.wait()
    await tool.close()
    for peer, command in waiting:
        peer.reply(command)
    member.respond = lambda peer, command: peer.reply(command, remark="still here")
    answer = await desk.ask(INFO, consumerGroup="readers", clientId="c1")
    assert answer.remark == "still here"


# -- consuming one message -----------------------------------------------------------------------


async def test_a_client_is_told_to_consume_a_message(desk: Desk) -> None:
    member = await desk.member("c1", "readers", "orders")
    result = DirectConsumption(consume_result="CR_SUCCESS", spent_time_mills=3)
    member.respond = lambda peer, command: peer.reply(command, body=result.encode())
    desk.world.send(body=b"before")
    stored = desk.world.send(body=b"this one", TAGS="a")
    msg_id = message_id(desk.gateway.store_host, stored.log_offset)
    answer = await desk.told(
        DIRECTLY, consumerGroup="readers", clientId="c1", msgId=msg_id, topic="orders"
    )
    assert DirectConsumption.decode(answer.body) == result
    (asked,) = member.asked
    (message,) = decode_messages(memoryview(bytes(asked.body)))
    assert (bytes(message.body), message.tags) == (b"this one", "a")
    assert asked.ext == {
        "consumerGroup": "readers",
        "clientId": "c1",
        "msgId": msg_id,
        "topic": "orders",
        "brokerName": "broker-a",
        "topicSysFlag": "2",
        "groupSysFlag": "0",
    }


async def test_a_message_that_is_not_there_cannot_be_consumed(desk: Desk) -> None:
    member = await desk.member("c1", "readers", "orders")
    stored = desk.world.send()
    host = desk.gateway.store_host
    for msg_id in (
        "garbage",
        "00",
        message_id(host, 1 << 40),
        message_id(host, stored.log_offset + 1),
    ):
        answer = await desk.ask(DIRECTLY, consumerGroup="readers", clientId="c1", msgId=msg_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
    good = message_id(host, stored.log_offset)
    answer = await desk.ask(DIRECTLY, consumerGroup="readers", msgId=good)
    assert answer.remark == "The Consumer <readers> <> not online"
    assert (await desk.ask(DIRECTLY, consumerGroup="readers", clientId="c1")).code != 0
    assert member.asked == []


# -- offsets as clients have them ----------------------------------------------------------------


def tell(offset: int) -> bytes:
    return ConsumerStatus(message_queue_table={QUEUE: offset}).encode()


async def status(desk: Desk, **ext: object) -> dict[str, dict[MessageQueue, int]]:
    answer = await desk.told(STATUS, **{"topic": "orders", "group": "readers", **ext})
    return ConsumerStatus.decode(answer.body).consumer_table


async def test_all_members_are_asked_for_their_offsets(desk: Desk) -> None:
    for number, client_id in enumerate(("c1", "c2")):
        member = await desk.member(client_id, "readers", "orders")
        member.respond = lambda peer, command, number=number: peer.reply(command, body=tell(number))
    assert await status(desk) == {"c1": {QUEUE: 0}, "c2": {QUEUE: 1}}
    assert await status(desk, clientAddr="c2") == {"c2": {QUEUE: 1}}
    assert await status(desk, clientAddr="nobody") == {}
    assert member.asked[0].code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    assert member.asked[0].ext == {"topic": "orders", "group": "readers"}


async def test_members_that_do_not_tell_are_left_out(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    good = await desk.member("good", "readers", "orders")
    good.respond = lambda peer, command: peer.reply(command, body=tell(7))
    garbage = await desk.member("garbage", "readers", "orders")
    garbage.respond = lambda peer, command: peer.reply(command, body=b"\xff{")
    gone = await desk.member("gone", "readers", "orders")
    gone.respond = lambda peer, _: peer.connection.abort()
    silent = await desk.member("silent", "readers", "orders")

    def let_its_time_pass(*_: object) -> None:
        for waiting in silent.session._unanswered.values():
            waiting.deadline = 0.0
        silent.session._expire(asyncio.get_running_loop())

    silent.respond = let_its_time_pass
    assert await status(desk) == {"good": {QUEUE: 7}}
    for client_id in ("garbage", "gone", "silent"):
        assert f"{client_id!r} does not tell its offsets" in caplog.text


async def test_offsets_of_a_group_that_is_not_there_or_too_old(desk: Desk) -> None:
    answer = await desk.ask(STATUS, topic="orders", group="readers")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "No Any Consumer online in the consumer group: [readers]"
    await desk.member("c1", "readers", "orders", version=27)
    answer = await desk.ask(STATUS, topic="orders", group="readers")
    assert answer.remark == "the client does not support this feature. version=27"
