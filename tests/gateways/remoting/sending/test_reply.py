"""Request and reply, as both sides see it."""

import asyncio
from pathlib import Path

import pytest

from onelog.gateways.remoting.sending import reply
from onelog.message import decode_properties, encode_properties
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.gateways.remoting.live import Client, bodies, broker, client, messages

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
REPLY = {"REPLY_TO_CLIENT": "requester", "CORRELATION_ID": "C1", "MSG_TYPE": "reply", "TTL": "3000"}


def send_reply(
    replier: Client, properties: dict[str, str] | None = None, **changed: object
) -> "asyncio.Task[Command]":
    """SEND_REPLY_MESSAGE_V2, whose answer comes when the requester has answered."""
    given = encode_properties(REPLY if properties is None else properties).decode()
    ext: dict[str, object] = {
        "a": "repliers",
        "b": REPLY_TOPIC,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 7,
        "i": given,
        "j": 0,
        "k": "false",
    }
    asked = replier.ask(RequestCode.SEND_REPLY_MESSAGE_V2, b"pong", **{**ext, **changed})
    return asyncio.get_running_loop().create_task(asked)


async def pushed(requester: Client) -> Command:
    async with asyncio.timeout(30):
        while True:
            for command in requester.asked:
                if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                    requester.asked.remove(command)
                    return command
            await asyncio.sleep(0.005)


def stored_count(server: BrokerServer) -> int:
    return server.core.store.max_offset(REPLY_TOPIC, 0)


async def test_a_reply_reaches_the_requester_and_is_acknowledged_when_it_has_it(
    tmp_path: Path,
) -> None:
    async with (
        broker(tmp_path) as server,
        client(server) as requester,
        client(server) as replier,
    ):
        await requester.heartbeat("requester", "g", "t")
        answer = send_reply(replier)
        push = await pushed(requester)
        assert bytes(push.body) == b"pong"
        expected = {
            "producerGroup": "repliers",
            "topic": REPLY_TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1700000000000",
            "flag": "7",
            "reconsumeTimes": "0",
            "unitMode": "false",
            "storeHost": server.address,
        }
        assert expected.items() <= push.ext.items()
        assert push.ext["bornHost"].startswith("127.0.0.1:")
        assert int(push.ext["storeTimestamp"]) > 1_700_000_000_000
        properties = decode_properties(push.ext["properties"].encode())
        assert REPLY.items() <= properties.items()
        assert properties["PUSH_REPLY_TIME"] == push.ext["storeTimestamp"]
        assert not answer.done()
        assert stored_count(server) == 0
        requester.peer.reply(push)
        told = await answer
        assert told.code == ResponseCode.SUCCESS
        assert (told.ext["queueId"], told.ext["queueOffset"]) == ("0", "0")
        assert (told.ext["MSG_REGION"], told.ext["TRACE_ON"]) == ("DefaultRegion", "true")
        (stored,) = messages(await replier.pull(REPLY_TOPIC, 0))
        assert stored.message_id == told.ext["msgId"]
        assert (bytes(stored.body), stored.flag) == (b"pong", 7)
        assert decode_properties(stored.properties) == REPLY


async def test_what_only_the_broker_may_say_of_a_record_is_not_taken_from_a_replier(
    tmp_path: Path,
) -> None:
    async with (
        broker(tmp_path) as server,
        client(server) as requester,
        client(server) as replier,
    ):
        await requester.heartbeat("requester", "g", "t")
        answer = send_reply(replier, {**REPLY, "INNER_NUM": "9"}, f=0x8C)
        requester.peer.reply(await pushed(requester))
        assert (await answer).code == ResponseCode.SUCCESS
        (stored,) = messages(await replier.pull(REPLY_TOPIC, 0))
        assert stored.sys_flag == 0
        assert decode_properties(stored.properties) == REPLY


async def test_the_long_form_of_the_request_is_understood(tmp_path: Path) -> None:
    async with (
        broker(tmp_path) as server,
        client(server) as requester,
        client(server) as replier,
    ):
        await requester.heartbeat("requester", "g", "t")
        asked = replier.ask(
            RequestCode.SEND_REPLY_MESSAGE,
            b"pong",
            producerGroup="repliers",
            topic=REPLY_TOPIC,
            defaultTopic="TBW102",
            defaultTopicQueueNums=4,
            queueId=-1,
            sysFlag=0,
            bornTimestamp=1,
            flag=0,
            properties=encode_properties(REPLY).decode().rstrip("\x02"),
        )
        answer = asyncio.get_running_loop().create_task(asked)
        requester.peer.reply(await pushed(requester))
        assert (await answer).code == ResponseCode.SUCCESS
        assert bodies(await replier.pull(REPLY_TOPIC, 0)) == [b"pong"]


async def test_a_requester_that_only_consumes_is_found_too(tmp_path: Path) -> None:
    async with (
        broker(tmp_path) as server,
        client(server) as requester,
        client(server) as replier,
    ):
        await requester.heartbeat("requester", "g", "t")
        await requester.ask(
            RequestCode.UNREGISTER_CLIENT, clientID="requester", producerGroup="g-producers"
        )
        answer = send_reply(replier)
        requester.peer.reply(await pushed(requester))
        assert (await answer).code == ResponseCode.SUCCESS


async def test_a_reply_to_a_dead_client_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as replier:
        async with client(server) as requester:
            await requester.heartbeat("requester", "g", "t")
        told = await send_reply(replier)
        assert told.code == ResponseCode.SYSTEM_ERROR
        assert told.remark == "push reply message fail, channel of <requester> not found."
        assert stored_count(server) == 0


async def test_a_reply_without_an_address_is_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as replier:
        told = await send_reply(replier, {"CORRELATION_ID": "C1"})
        assert (told.code, told.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "reply message properties[REPLY_TO_CLIENT] is null",
        )


async def test_a_requester_that_dies_with_the_reply_is_an_error(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as replier:
        async with client(server) as requester:
            await requester.heartbeat("requester", "g", "t")
            answer = send_reply(replier)
            await pushed(requester)
        told = await answer
        assert told.code == ResponseCode.SYSTEM_ERROR
        assert "its connection is closed" in (told.remark or "")
        assert stored_count(server) == 0


async def test_a_requester_that_does_not_answer_is_an_error_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "PUSH_TIMEOUT_MS", 50)
    async with (
        broker(tmp_path) as server,
        client(server) as requester,
        client(server) as replier,
    ):
        await requester.heartbeat("requester", "g", "t")
        told = await send_reply(replier)
        assert told.code == ResponseCode.SYSTEM_ERROR
        assert "did not answer within 50 ms" in (told.remark or "")
        assert stored_count(server) == 0


async def test_a_requester_that_cannot_use_the_reply_says_why(tmp_path: Path) -> None:
    async with (
        broker(tmp_path) as server,
        client(server) as requester,
        client(server) as replier,
    ):
        await requester.heartbeat("requester", "g", "t")
        answer = send_reply(replier)
        requester.peer.reply(
            await pushed(requester), ResponseCode.SYSTEM_ERROR, remark="process reply message fail"
        )
        told = await answer
        assert told.code == ResponseCode.SYSTEM_ERROR
        assert "process reply message fail" in (told.remark or "")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION),
        ({"e": 9}, ResponseCode.INVALID_PARAMETER),
        ({"b": "nowhere", "c": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_what_cannot_be_stored_is_not_pushed(
    tmp_path: Path, changed: dict[str, object], code: ResponseCode
) -> None:
    async with (
        broker(tmp_path) as server,
        client(server) as requester,
        client(server) as replier,
    ):
        await requester.heartbeat("requester", "g", "t")
        told = await send_reply(replier, None, **changed)
        assert told.code == code
        await requester.heartbeat("requester", "g", "t")
        assert [each.code for each in requester.asked] == [
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        ] * len(requester.asked)


async def test_many_requests_wait_side_by_side(tmp_path: Path) -> None:
    async with (
        broker(tmp_path) as server,
        client(server) as requester,
        client(server) as replier,
    ):
        await requester.heartbeat("requester", "g", "t")
        answers = [
            send_reply(replier, {**REPLY, "CORRELATION_ID": f"C{number}"}) for number in range(50)
        ]
        pushes = [await pushed(requester) for _ in answers]
        for push in reversed(pushes):
            requester.peer.reply(push)
        codes = {(await answer).code for answer in answers}
        assert codes == {ResponseCode.SUCCESS}
        assert stored_count(server) == 50
