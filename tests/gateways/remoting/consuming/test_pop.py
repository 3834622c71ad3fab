"""POP, as a client sees it."""

import asyncio
import base64
import json
import struct
import time
from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.queues import lending
from onelog.errors import StoreFullError
from onelog.net.peer import Peer
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.core.world import entries_of
from tests.gateways.remoting.live import bodies, client, pass_time
from tests.gateways.remoting.popping import GROUP, TOPIC, Popped, Popper, popping
from tests.ports import free_port
from tests.waiting import eventually

RETRY = f"%RETRY%{GROUP}_{TOPIC}"


async def eventually_pop(member: Popper, **changed: object) -> list[bytes]:
    """Pop with long polling, as consumers do."""
    return [each.body for each in await member.pop(pollTime=30_000, **changed)]


# -- popping -----------------------------------------------------------------------------------


async def test_an_answer_says_in_rocketmqs_words_what_was_leased(tmp_path: Path) -> None:
    async with popping(tmp_path, queues=4) as (_, member):
        for n in range(5):
            await member.send(b"%d" % n, queue_id=2)
        before = time.time_ns() // 1_000_000
        answer = await member.ask_pop(maxMsgNums=3, invisibleTime=12_345)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.remark == "FOUND"
        assert before <= int(answer.ext.pop("popTime")) <= before + 30_000
        assert answer.ext == {
            "invisibleTime": "12345",
            "reviveQid": "0",
            "restNum": "2",
            "startOffsetInfo": "0 2 0",
            "msgOffsetInfo": "0 2 0,1,2",
        }
        assert bodies(answer) == [b"0", b"1", b"2"]
        assert (await member.ask_pop()).ext["startOffsetInfo"] == "0 2 3"


async def test_the_bytes_on_the_wire_are_a_json_header_and_the_records_as_stored(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path) as (server, member):
        await member.send(b"hello", TAGS="t")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.config.broker.port)
        ext = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "0",
            "maxMsgNums": "32",
            "invisibleTime": "60000",
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
        }
        header = json.dumps(
            {
                "code": 200050,
                "flag": 0,
                "language": "JAVA",
                "opaque": 77,
                "version": 479,
                "serializeTypeCurrentRPC": "JSON",
                "extFields": ext,
            }
        ).encode()
        writer.write(struct.pack(">iI", 4 + len(header), len(header)) + header)
        length, mark = struct.unpack(">iI", await reader.readexactly(8))
        assert mark >> 24 == 0
        told = json.loads(await reader.readexactly(mark))
        body = await reader.readexactly(length - 4 - mark)
        writer.close()
        await writer.wait_closed()
        stamp = told["extFields"]["popTime"]
        assert stamp.isdigit()
        assert told["code"] == 0
        assert told["flag"] == 1
        assert told["opaque"] == 77
        assert told["extFields"] == {
            "popTime": stamp,
            "invisibleTime": "60000",
            "reviveQid": "0",
            "restNum": "0",
            "startOffsetInfo": "0 0 0",
            "msgOffsetInfo": "0 0 0",
        }
        at, size, _ = next(iter(server.store.entries(TOPIC, 0, 0, 1)))
        assert body == server.store.record(at, size)


async def test_all_queues_are_popped_and_each_message_has_its_receipt(tmp_path: Path) -> None:
    async with popping(tmp_path, queues=4) as (server, member):
        for n in range(20):
            await member.send(b"%d" % n, queue_id=n % 4)
        got = await member.pop()
        assert len(got) == 20
        for popped in got:
            assert (await member.ack(popped)).code == ResponseCode.SUCCESS
        assert [server.core.offsets.get(GROUP, TOPIC, queue) for queue in range(4)] == [5] * 4
        assert len(server.core.leases) == 0


async def test_filters_are_obeyed_and_bad_ones_refused(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, member):
        for tag in ("a", "b", "c", "b"):
            await member.send(tag.encode(), TAGS=tag, size=str(ord(tag)))
        answer = await member.ask_pop(exp="b || x")
        assert answer.ext["startOffsetInfo"] == "0 0 1"
        assert answer.ext["msgOffsetInfo"] == "0 0 1,3"
        sql = await member.ask_pop(consumerGroup="others", exp="size > 98", expType="SQL92")
        assert bodies(sql) == [b"c"]
        refused = await member.ask_pop(exp="size >", expType="SQL92")
        assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_crowd_of_slow_filters_takes_turns_and_everything_is_popped(
    tmp_path: Path,
) -> None:
    slow = " or ".join(f"n = {n}" for n in range(-499, 0)) + " or n > 48"
    async with popping(tmp_path, broker__filter_budget_ms=1) as (_, member):
        for n in range(50):
            await member.send(b"%d" % n, n=str(n))
        answers = await asyncio.gather(
            *(
                member.ask_pop(consumerGroup=f"g{n}", exp=slow, expType="SQL92", pollTime=20_000)
                for n in range(20)
            )
        )
        for answer in answers:
            while answer.code == ResponseCode.POLLING_TIMEOUT:
                group = f"g{answers.index(answer)}"
                answer = await member.ask_pop(consumerGroup=group, exp=slow, expType="SQL92")
            assert bodies(answer) == [b"49"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 10**12}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 1}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"invisibleTime": "soon"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_request_that_makes_no_sense_leases_nothing(
    tmp_path: Path, changed: dict[str, object], code: ResponseCode
) -> None:
    async with popping(tmp_path) as (server, member):
        await member.send(b"x")
        answer = await member.ask_pop(**changed)
        assert answer.code == code
        assert answer.remark
        assert len(server.core.leases) == 0


async def test_a_group_that_holds_too_much_is_told_to_acknowledge(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        server.core.leases.queue_leases_max = 1
        await member.send(b"0")
        await member.send(b"1")
        assert len(await member.pop()) == 1
        refused = await member.ask_pop()
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "must acknowledge some first" in (refused.remark or "")


async def test_nobody_is_told_of_a_lease_that_could_not_be_recorded(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        await member.send(b"x")
        server.store.refusals.now = StoreFullError("the disk is full")
        assert (await member.ask_pop()).code == ResponseCode.SERVICE_NOT_AVAILABLE
        server.store.refusals.now = None


async def test_records_that_are_not_in_memory_are_read_by_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path) as (server, member):
        await member.send(b"cold")
        monkeypatch.setattr(server.core.reader, "_is_cold", lambda _: True)
        peeked = await member.words.ask(
            RequestCode.PEEK_MESSAGE, consumerGroup=GROUP, topic=TOPIC, queueId=0, maxMsgNums=1
        )
        assert bodies(peeked) == [b"cold"]
        assert bodies(await member.ask_pop()) == [b"cold"]


# -- coming back -------------------------------------------------------------------------------


async def test_an_unacknowledged_message_comes_back_with_its_count_through_a_held_request(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path) as (_, member):
        await member.send(b"x", KEYS="k")
        first = (await member.pop(invisibleTime=300))[0]
        for times, invisible_ms in ((1, 300), (2, 60_000)):
            again = (await member.pop(invisibleTime=invisible_ms, pollTime=30_000))[0]
            assert again.real_topic == RETRY
            assert again.receipt.split(" ")[4] == "1"
            assert again.message.reconsume_times == times
            assert again.message.unique_key == first.message.unique_key
        assert (await member.ack(first)).code == ResponseCode.NO_MESSAGE
        assert (await member.ack(again)).code == ResponseCode.SUCCESS
        assert await member.pop(pollTime=600) == []


async def test_messages_of_topic_and_retry_topic_may_share_an_answer(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        await member.send(b"old")
        await member.pop(invisibleTime=0)
        await eventually(lambda: server.store.max_offset(RETRY, 0) == 1)
        await member.send(b"new")
        got = await member.pop()
        assert {each.body: each.receipt.split(" ")[4] for each in got} == {b"old": "1", b"new": "0"}
        for each in got:
            assert (await member.ack(each)).code == ResponseCode.SUCCESS


async def test_a_changed_time_has_a_new_receipt_and_the_old_one_is_void(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        await member.send(b"x")
        popped = (await member.pop())[0]
        answer = await member.change(popped, 30_000)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext["invisibleTime"] == "30000"
        assert answer.ext["reviveQid"] == "0"
        assert int(answer.ext["popTime"]) > int(popped.receipt.split(" ")[1])
        assert (await member.ack(popped)).code == ResponseCode.NO_MESSAGE
        renewed = f"0 {answer.ext['popTime']} 30000 0 0 broker-a 0 0"
        assert (await member.ack(popped, extraInfo=renewed)).code == ResponseCode.SUCCESS
        assert len(server.core.leases) == 0


async def test_leases_and_acknowledgements_survive_a_restart(tmp_path: Path) -> None:
    port = free_port()
    async with popping(tmp_path, broker__port=port) as (_, member):
        for n in range(3):
            await member.send(b"%d" % n)
        one, two, _ = await member.pop()
        await member.ack(one)
    async with popping(tmp_path, broker__port=port) as (server, member):
        assert await member.pop(pollTime=300) == []
        assert (await member.ack(two)).code == ResponseCode.SUCCESS
        assert server.core.offsets.get(GROUP, TOPIC, 0) == 2
        assert len(server.core.leases) == 1


# -- receipts ----------------------------------------------------------------------------------


async def test_forged_stale_and_double_acknowledgements_are_refused_and_change_nothing(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path, queues=2) as (server, member):
        for n in range(2):
            await member.send(b"%d" % n)
        one, two = await member.pop()
        await member.ack(one)
        state = entries_of(server.core.leases)
        token = two.receipt.split(" ")

        def forged(place: int, value: object) -> str:
            return " ".join([*token[:place], str(value), *token[place + 1 :]])

        cases: list[tuple[Popped, dict[str, object], ResponseCode]] = [
            (one, {}, ResponseCode.NO_MESSAGE),
            (two, {"extraInfo": forged(1, int(token[1]) + 1)}, ResponseCode.NO_MESSAGE),
            (two, {"offset": 7, "extraInfo": forged(7, 7)}, ResponseCode.NO_MESSAGE),
            (two, {"consumerGroup": "strangers"}, ResponseCode.NO_MESSAGE),
            (two, {"queueId": 1, "extraInfo": forged(6, 1)}, ResponseCode.NO_MESSAGE),
            (two, {"queueId": 1}, ResponseCode.MESSAGE_ILLEGAL),
            (two, {"queueId": 5}, ResponseCode.MESSAGE_ILLEGAL),
            (two, {"queueId": -1}, ResponseCode.MESSAGE_ILLEGAL),
            (two, {"offset": 0}, ResponseCode.MESSAGE_ILLEGAL),
            (two, {"extraInfo": forged(5, "broker-b")}, ResponseCode.MESSAGE_ILLEGAL),
            (two, {"extraInfo": forged(4, 1)}, ResponseCode.MESSAGE_ILLEGAL),
            (two, {"extraInfo": "no receipt"}, ResponseCode.MESSAGE_ILLEGAL),
            (two, {"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ]
        for popped, changed, code in cases:
            answer = await member.ack(popped, **changed)
            assert (answer.code, changed) == (code, changed)
            assert answer.remark
            answer = await member.change(popped, 5_000, **changed)
            assert (answer.code, changed) == (code, changed)
        refused = await member.change(two, -1)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert entries_of(server.core.leases) == state
        assert (await member.ack(two)).code == ResponseCode.SUCCESS


def batch(*acks: dict[str, object]) -> bytes:
    return json.dumps({"brokerName": "broker-a", "acks": list(acks)}).encode()


def bits(value: int) -> str:
    return base64.b64encode(value.to_bytes(2, "little").rstrip(b"\0")).decode()


async def test_a_batch_acknowledges_what_is_out(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        for n in range(12):
            await member.send(b"%d" % n)
        stamp = int((await member.pop())[0].receipt.split(" ")[1])
        some: dict[str, object] = {
            "c": GROUP,
            "t": TOPIC,
            "r": "0",
            "so": 0,
            "q": 0,
            "rq": 0,
            "pt": stamp,
            "it": 60_000,
        }
        body = batch({**some, "b": bits(0b0000_0000_1111)}, {**some, "so": 8, "b": bits(0b11)})
        answer = await member.words.ask(RequestCode.BATCH_ACK_MESSAGE, body)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        assert server.core.offsets.get(GROUP, TOPIC, 0) == 4
        body = batch({**some, "b": bits(0b0000_0001_1000)})
        answer = await member.words.ask(RequestCode.BATCH_ACK_MESSAGE, body)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.remark == "1 of 2 messages were not out"
        for stale in (body, batch({**some, "pt": stamp + 1, "b": bits(0xFFF)}), batch(), b"{}"):
            answer = await member.words.ask(RequestCode.BATCH_ACK_MESSAGE, stale)
            assert answer.code == ResponseCode.NO_MESSAGE
        empty = await member.words.ask(RequestCode.BATCH_ACK_MESSAGE)
        assert empty.code == ResponseCode.NO_MESSAGE
        broken = await member.words.ask(RequestCode.BATCH_ACK_MESSAGE, b"{")
        assert broken.code == ResponseCode.SYSTEM_ERROR
        assert len(server.core.leases) == 5


async def test_a_batch_may_be_of_the_retry_topic(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        await member.send(b"x")
        await member.pop(invisibleTime=0)
        again = (await member.pop(pollTime=30_000))[0]
        ack: dict[str, object] = {
            "c": GROUP,
            "t": TOPIC,
            "r": "1",
            "so": 0,
            "q": 0,
            "rq": 0,
            "pt": int(again.receipt.split(" ")[1]),
            "it": 60_000,
            "b": bits(1),
        }
        answer = await member.words.ask(RequestCode.BATCH_ACK_MESSAGE, batch(ack))
        assert answer.code == ResponseCode.SUCCESS
        assert len(server.core.leases) == 0


# -- waiting -----------------------------------------------------------------------------------


async def hold(server: BrokerServer, member: Popper, **changed: object) -> "asyncio.Task[Command]":
    """A request that the broker holds; it asks to be held for longer than a test may take."""
    held = len(server.core.waiting)
    task = asyncio.create_task(member.ask_pop(**{"pollTime": 600_000, **changed}))
    await eventually(lambda: len(server.core.waiting) == held + 1)
    return task


async def test_a_held_request_is_answered_the_moment_a_message_arrives(tmp_path: Path) -> None:
    async with popping(tmp_path, queues=2) as (server, member), client(server) as sender:
        held = await hold(server, member)
        assert not held.done()
        await sender.send(TOPIC, b"x", e=1)
        answer = await held
        assert bodies(answer) == [b"x"]
        assert answer.ext["startOffsetInfo"] == "0 1 0"


async def test_a_held_request_ends_with_its_time(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, member):
        began = time.monotonic()
        answer = await member.ask_pop(pollTime=300)
        assert time.monotonic() - began > 0.29
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        assert answer.remark == "NO_MESSAGE_IN_QUEUE"
        assert {name: answer.ext[name] for name in ("invisibleTime", "reviveQid", "restNum")} == {
            "invisibleTime": "60000",
            "reviveQid": "0",
            "restNum": "0",
        }
        assert (await member.ask_pop()).code == ResponseCode.POLLING_TIMEOUT


async def test_members_that_wait_share_what_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path) as (server, one), client(server) as second:
        two = Popper(second)
        held = [await hold(server, member) for member in (one, two)]
        await one.send(b"x")
        await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
        pass_time(server, 600_100, monkeypatch)
        answers = [await each for each in held]
        assert sorted(answer.code for answer in answers) == [
            ResponseCode.SUCCESS,
            ResponseCode.POLLING_TIMEOUT,
        ]


async def test_a_request_that_wants_other_tags_waits_on(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        held = await hold(server, member, exp="wanted")
        await member.send(b"no", TAGS="other")
        await asyncio.sleep(0.1)
        assert not held.done()
        await member.send(b"yes", TAGS="wanted")
        assert bodies(await held) == [b"yes"]


async def test_too_many_held_requests_are_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "HELD_MAX", 1)
    async with popping(tmp_path) as (server, member):
        held = await hold(server, member)
        assert (await member.ask_pop(pollTime=500)).code == ResponseCode.POLLING_FULL
        ask = member.words.ask
        info = await ask(RequestCode.POLLING_INFO, consumerGroup=GROUP, topic=TOPIC, queueId=-1)
        assert info.ext == {"pollingNum": "1"}
        full = await ask(
            RequestCode.NOTIFICATION,
            consumerGroup=GROUP,
            topic=TOPIC,
            queueId=-1,
            pollTime=500,
            bornTime=0,
        )
        assert full.ext == {"hasMsg": "false", "pollingFull": "true"}
        await member.send(b"x")
        await held
        info = await ask(RequestCode.POLLING_INFO, consumerGroup=GROUP, topic=TOPIC, queueId=0)
        assert info.ext == {"pollingNum": "0"}


async def test_requests_for_a_topic_that_was_deleted_are_told_so_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path) as (server, member):
        held = await hold(server, member)
        server.broker.topics.delete(SELF, TOPIC)
        pass_time(server, 600_100, monkeypatch)
        assert (await held).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_client_that_is_gone_gets_no_messages(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        peer = await Peer.connect("127.0.0.1", server.config.broker.port)
        gone = Popper(type(member.words)(peer, []))
        held = await hold(server, gone)
        await peer.close()
        assert isinstance((await asyncio.gather(held, return_exceptions=True))[0], Exception)
        await member.send(b"x")
        assert bodies(await member.ask_pop()) == [b"x"]


async def test_a_notification_comes_when_there_is_something_to_pop(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        about = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "bornTime": 0}
        ask = member.words.ask
        nothing = await ask(RequestCode.NOTIFICATION, pollTime=0, **about)
        assert (nothing.code, nothing.ext["hasMsg"]) == (ResponseCode.SUCCESS, "false")
        late = await ask(RequestCode.NOTIFICATION, pollTime=200, **about)
        assert late.ext == {"hasMsg": "false", "pollingFull": "false"}
        held = asyncio.create_task(ask(RequestCode.NOTIFICATION, pollTime=60_000, **about))
        await eventually(lambda: len(server.core.waiting) == 1)
        await member.send(b"x")
        assert (await held).ext == {"hasMsg": "true", "pollingFull": "false"}
        assert len(await member.pop()) == 1


async def test_peeking_leases_nothing(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        about = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "maxMsgNums": 2}
        nothing = await member.words.ask(RequestCode.PEEK_MESSAGE, **about)
        assert nothing.code == ResponseCode.PULL_NOT_FOUND
        for n in range(3):
            await member.send(b"%d" % n)
        for _ in range(2):
            answer = await member.words.ask(RequestCode.PEEK_MESSAGE, **about)
            assert bodies(answer) == [b"0", b"1"]
            assert answer.ext["restNum"] == "3"
        assert len(server.core.leases) == 0


# -- order -------------------------------------------------------------------------------------


async def test_ordered_messages_block_their_queue_and_come_back_in_place_counted(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path) as (_, member):
        for n in range(3):
            await member.send(b"%d" % n)
        about = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
        ordered = {"order": "true", "queueId": 0, "maxMsgNums": 2}
        first = await member.ask_pop(**ordered)
        assert bodies(first) == [b"0", b"1"]
        assert first.ext["reviveQid"] == "999"
        assert first.ext["orderCountInfo"] == "0 0 0"
        blocked = await member.ask_pop(**ordered)
        assert (blocked.code, blocked.ext["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "0")
        stamp = first.ext["popTime"]
        receipt = f"0 {stamp} 60000 999 0 broker-a 0"
        ack = await member.words.ask(
            RequestCode.ACK_MESSAGE, offset=0, extraInfo=f"{receipt} 0", **about
        )
        assert ack.code == ResponseCode.SUCCESS
        changed = await member.words.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            offset=1,
            extraInfo=f"{receipt} 1",
            invisibleTime=100,
            **about,
        )
        assert changed.code == ResponseCode.SUCCESS
        again = await member.ask_pop(pollTime=30_000, **ordered)
        assert bodies(again) == [b"1", b"2"]
        assert again.ext["orderCountInfo"] == "0 qo0%1 1;0 0 0"


async def test_an_ordered_attempt_that_missed_its_answer_gets_it_again(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, member):
        await member.send(b"x")
        ordered = {"order": "true", "queueId": 0}
        assert bodies(await member.ask_pop(attemptId="one", **ordered)) == [b"x"]
        assert bodies(await member.ask_pop(attemptId="two", **ordered)) == []
        again = await member.ask_pop(attemptId="one", **ordered)
        assert bodies(again) == [b"x"]
        assert again.ext["orderCountInfo"] == "0 0 0"


async def test_an_ordered_lease_keeps_its_pop_time_when_it_is_changed(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, member):
        await member.send(b"x")
        answer = await member.ask_pop(order="true")
        stamp = int(answer.ext["popTime"])
        about = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "offset": 0}
        changed = await member.words.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            extraInfo=f"0 {stamp} 60000 999 0 broker-a 0 0",
            invisibleTime=50_000,
            **about,
        )
        assert (changed.ext["popTime"], changed.ext["reviveQid"]) == (str(stamp), "999")
        assert 50_000 <= int(changed.ext["invisibleTime"]) < 110_000
        ack = await member.words.ask(
            RequestCode.ACK_MESSAGE,
            extraInfo=f"0 {stamp} {changed.ext['invisibleTime']} 999 0 broker-a 0 0",
            **about,
        )
        assert ack.code == ResponseCode.SUCCESS
