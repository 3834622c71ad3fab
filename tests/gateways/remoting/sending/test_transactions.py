"""Transactions, as a producer sees them."""

from pathlib import Path

import pytest

from onelog.message import decode_properties
from onelog.names import CHECKED_OUT_TOPIC, HALF_TOPIC
from onelog.record.decode import decode_message
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.gateways.remoting.live import Client, bodies, broker, client, messages
from tests.waiting import eventually

GROUP = "g-producers"
COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
HALF = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "U1", "TAGS": "t"}
SOON = {"broker__transaction_timeout_ms": 1, "broker__transaction_check_interval_ms": 20}


async def begin(producer: Client, body: bytes = b"pay", **changed: str) -> dict[str, object]:
    """Send a half message; what the producer then says of it."""
    answer = await producer.send("orders", body, {**HALF, **changed}, f=4)
    assert answer.code == ResponseCode.SUCCESS
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": int(answer.ext["msgId"][-16:], 16),
        "msgId": answer.ext["transactionId"],
        "transactionId": answer.ext["transactionId"],
    }


async def end(producer: Client, place: dict[str, object], outcome: int, **more: object) -> Command:
    fields = {**place, "commitOrRollback": outcome, **more}
    return await producer.ask(RequestCode.END_TRANSACTION, **fields)


async def test_a_committed_message_appears_and_a_rolled_back_one_never_does(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        await producer.send("orders", b"plain")
        committed = await begin(producer, b"committed")
        rolled_back = await begin(producer, b"rolled back")
        assert bodies(await producer.pull("orders", 0)) == [b"plain"]
        assert (await end(producer, rolled_back, ROLL_BACK)).code == ResponseCode.SUCCESS
        assert (await end(producer, committed, COMMIT)).code == ResponseCode.SUCCESS
        _, found = messages(await producer.pull("orders", 0))
        assert bytes(found.body) == b"committed"
        properties = decode_properties(found.properties)
        assert properties["PGROUP"] == GROUP
        assert properties["__transactionId__"] == "U1"
        assert "TRAN_MSG" not in properties
        assert "REAL_TOPIC" not in properties


async def test_the_answer_to_a_half_message_names_the_queue_that_was_asked_for(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        answer = await producer.send("orders", b"x", HALF, e=3, f=4)
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("3", "0")
        assert answer.ext["transactionId"] == "U1"
        assert server.core.topics.require("orders").write_queues == 4
        assert server.core.store.max_offset(HALF_TOPIC, 0) == 1


async def test_ends_come_one_way_and_want_no_answer(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        place = await begin(producer)
        fields = {name: str(value) for name, value in {**place, "commitOrRollback": COMMIT}.items()}
        producer.peer.oneway(RequestCode.END_TRANSACTION, fields)
        held = await producer.pull("orders", 0, sysFlag=6, suspendTimeoutMillis=30_000)
        assert bodies(held) == [b"pay"]


async def test_an_unknown_outcome_is_acknowledged_and_changes_nothing(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        place = await begin(producer)
        assert (await end(producer, place, UNKNOWN)).code == ResponseCode.SUCCESS
        assert len(server.core.transactions) == 1


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"producerGroup": "others"}, ResponseCode.SYSTEM_ERROR, "producer group wrong"),
        ({"tranStateTableOffset": 7}, ResponseCode.SYSTEM_ERROR, "no transaction is open"),
        ({"tranStateTableOffset": -1}, ResponseCode.SYSTEM_ERROR, "no transaction is open"),
        ({"commitLogOffset": 1}, ResponseCode.SYSTEM_ERROR, "commit log offset wrong"),
        ({"commitLogOffset": 2**62}, ResponseCode.SYSTEM_ERROR, "commit log offset wrong"),
        ({"commitLogOffset": "x"}, ResponseCode.SYSTEM_ERROR, "commitLogOffset"),
        ({"commitOrRollback": 4}, ResponseCode.SYSTEM_ERROR, "commitOrRollback"),
        ({"producerGroup": None}, ResponseCode.SYSTEM_ERROR, "producerGroup"),
    ],
)
async def test_a_wrong_commit_is_refused_without_a_change(
    tmp_path: Path, changed: dict[str, object], code: ResponseCode, words: str
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        place = {**await begin(producer), "commitOrRollback": COMMIT, **changed}
        given = {name: value for name, value in place.items() if value is not None}
        answer = await producer.ask(RequestCode.END_TRANSACTION, **given)
        assert answer.code == code
        assert words in (answer.remark or "")
        assert len(server.core.transactions) == 1
        assert bodies(await producer.pull("orders", 0)) == []


async def test_a_second_and_a_late_end_are_refused(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__transaction_timeout_ms=1) as server:
        async with client(server) as producer:
            place = await begin(producer)
            assert (await end(producer, place, ROLL_BACK)).code == ResponseCode.SUCCESS
            again = await end(producer, place, COMMIT)
            assert (again.code, "has ended" in (again.remark or "")) == (1, True)
            # The live client's messages were born in 2023: ten seconds of immunity are over.
            place = await begin(producer, CHECK_IMMUNITY_TIME_IN_SECONDS="10")
            late = await end(producer, place, COMMIT)
            assert late.code == ResponseCode.ILLEGAL_OPERATION
            asked = await end(producer, place, COMMIT, fromTransactionCheck="true")
            assert asked.code == ResponseCode.SUCCESS
            assert bodies(await producer.pull("orders", 0)) == [b"pay"]


async def test_a_producer_is_asked_with_its_own_message_and_answers(tmp_path: Path) -> None:
    async with broker(tmp_path, **SOON) as server, client(server) as producer:
        await producer.heartbeat("c1", "g", "orders")
        place = await begin(producer, b"what became of me?", K="v")
        await eventually(lambda: bool(questions(producer)))
        question = questions(producer)[0]
        assert question.ext["tranStateTableOffset"] == place["tranStateTableOffset"]
        assert question.ext["commitLogOffset"] == str(place["commitLogOffset"])
        assert (question.ext["topic"], question.ext["bname"]) == ("orders", "broker-a")
        assert (question.ext["msgId"], question.ext["transactionId"]) == ("U1", "U1")
        message = decode_message(memoryview(bytes(question.body)))
        assert (message.topic, message.queue_id) == ("orders", 0)
        assert message.message_id == question.ext["offsetMsgId"]
        assert bytes(message.body) == b"what became of me?"
        properties = decode_properties(message.properties)
        assert (properties["K"], properties["PGROUP"]) == ("v", GROUP)
        assert properties["TRANSACTION_CHECK_TIMES"] == "1"
        answer = await end(producer, place, COMMIT, fromTransactionCheck="true")
        assert answer.code == ResponseCode.SUCCESS
        assert bodies(await producer.pull("orders", 0)) == [b"what became of me?"]


def questions(producer: Client) -> list[Command]:
    return [each for each in producer.asked if each.code == RequestCode.CHECK_TRANSACTION_STATE]


async def test_when_the_producer_is_gone_another_of_its_group_is_asked(tmp_path: Path) -> None:
    async with broker(tmp_path, **SOON) as server:
        async with client(server) as dying:
            await dying.heartbeat("dying", "g", "orders")
            place = await begin(dying)
        async with client(server) as stranger, client(server) as heir:
            await stranger.heartbeat("stranger", "h", "orders")
            await heir.heartbeat("heir", "g", "orders")
            await eventually(lambda: bool(questions(heir)))
            assert questions(stranger) == []
            await end(heir, place, COMMIT, fromTransactionCheck="true")
            assert bodies(await heir.pull("orders", 0)) == [b"pay"]


async def test_what_nobody_answers_is_put_away_and_can_be_resumed(tmp_path: Path) -> None:
    async with broker(tmp_path, **SOON, broker__transaction_check_max=2) as server:
        async with client(server) as producer:
            await producer.heartbeat("c1", "g", "orders")
            await begin(producer)
            await eventually(lambda: put_away(server) == 1)
            assert len(questions(producer)) == 2
            (kept,) = messages(await producer.pull(CHECKED_OUT_TOPIC, 0))
            for wrong in ("nonsense", "00" * 16):
                answer = await producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=wrong)
                assert answer.code != ResponseCode.SUCCESS
            answer = await producer.ask(
                RequestCode.RESUME_CHECK_HALF_MESSAGE, topic="orders", msgId=kept.message_id
            )
            assert answer.code == ResponseCode.SUCCESS
            await eventually(lambda: len(questions(producer)) == 3)
            question = questions(producer)[-1]
            place: dict[str, object] = {"producerGroup": GROUP, **question.ext}
            await end(producer, place, COMMIT, fromTransactionCheck="true")
            assert bodies(await producer.pull("orders", 0)) == [b"pay"]


def put_away(server: BrokerServer) -> int:
    return server.core.store.max_offset(CHECKED_OUT_TOPIC, 0)


async def test_a_restarted_broker_asks_about_what_it_was_told_before(tmp_path: Path) -> None:
    async with broker(tmp_path, **SOON) as server, client(server) as producer:
        place = await begin(producer)
    async with broker(tmp_path, **SOON) as server, client(server) as producer:
        await producer.heartbeat("c1", "g", "orders")
        await eventually(lambda: bool(questions(producer)))
        await end(producer, place, COMMIT, fromTransactionCheck="true")
        assert bodies(await producer.pull("orders", 0)) == [b"pay"]
