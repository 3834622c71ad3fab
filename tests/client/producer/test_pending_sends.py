"""PendingSends: receipts, failures with words that name the broker, and room for only so many."""

import asyncio

import pytest

from onelog.client.connection.address import Address
from onelog.client.message import Queue, Receipt, SendStatus
from onelog.client.producer import pending_sends as module
from onelog.client.producer.pending_sends import FailedTry, PendingSend, PendingSends, given_up
from onelog.client.producer.send_targets import Channel, Faults, SendTarget
from onelog.clock import ManualClock
from onelog.errors import (
    BrokerBusyError,
    MessageError,
    NotPermittedError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    RequestRefusedError,
    SendFailedError,
    TopicNotFoundError,
    WireError,
)
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.send import SendTemplate

TEMPLATE = SendTemplate("g", "orders", 1, "broker-a", default_topic="TBW102", default_queues=4)
TARGET = SendTarget(
    Queue("orders", "broker-a", 1), Channel("broker-a", Address("127.0.0.1", 10911)), TEMPLATE
)
STORED = {"msgId": "OFFSET", "queueId": "1", "queueOffset": "42", "transactionId": "TX"}


def pending(faults: Faults | None = None) -> PendingSends:
    made = PendingSends(faults)
    made.loop = asyncio.get_running_loop()
    return made


def sent(group: PendingSends, size: int = 1) -> tuple[PendingSend, list[Receipt | FailedTry]]:
    ends: list[Receipt | FailedTry] = []
    made = PendingSend(group, TARGET, "ID", size, ends.append)
    made.code, made.timeout_ms = RequestCode.SEND_MESSAGE_V2, 3_000
    made.deadline = group.loop.time() + 3
    return made, ends


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.OK),
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_UNAVAILABLE),
    ],
)
async def test_a_broker_that_has_the_message_gives_a_receipt(code: int, status: SendStatus) -> None:
    one, ends = sent(pending())
    one.answered(Command(int(code), ext={**STORED, "recallHandle": "H"}))
    assert ends == [Receipt("ID", "OFFSET", TARGET.queue, 42, status, "H", "TX")]


@pytest.mark.parametrize(
    ("code", "kind", "again"),
    [
        (ResponseCode.SYSTEM_ERROR, RequestRefusedError, True),
        (ResponseCode.SYSTEM_BUSY, BrokerBusyError, True),
        (ResponseCode.SERVICE_NOT_AVAILABLE, RequestRefusedError, True),
        (ResponseCode.NO_PERMISSION, NotPermittedError, True),
        (ResponseCode.TOPIC_NOT_EXIST, TopicNotFoundError, True),
        (ResponseCode.GO_AWAY, RequestRefusedError, True),
        (ResponseCode.MESSAGE_ILLEGAL, MessageError, False),
        (ResponseCode.INVALID_PARAMETER, RequestRefusedError, False),
    ],
)
async def test_a_refusal_is_tried_elsewhere_if_another_broker_may_think_otherwise(
    code: ResponseCode, kind: type[OnelogError], again: bool
) -> None:
    one, ends = sent(pending())
    one.answered(Command(code.value, remark="because"))
    (failed,) = ends
    assert isinstance(failed, FailedTry)
    assert type(failed.error) is kind
    assert "127.0.0.1:10911 refused SEND_MESSAGE_V2: because" in str(failed.error)
    assert (failed.is_worth_another, failed.was_refused) == (again, True)
    assert (failed.message_id, failed.broker) == ("ID", "broker-a")


async def test_no_answer_is_told_with_the_brokers_name_and_address() -> None:
    for error, words in (
        (PeerTimeoutError("x"), "did not answer within 3000 ms"),
        (PeerClosedError("x"), "closed the connection before it answered"),
    ):
        one, ends = sent(pending())
        one.answered(error)
        (failed,) = ends
        assert isinstance(failed, FailedTry)
        assert str(failed.error) == f"broker-a (127.0.0.1:10911) {words}"
        assert failed.is_worth_another
        assert type(failed.error) is type(error)


@pytest.mark.parametrize("ext", [{}, {"msgId": "x"}, {"msgId": "x", "queueOffset": "?"}])
async def test_a_receipt_that_cannot_be_read_is_not_tried_again(ext: dict[str, str]) -> None:
    one, ends = sent(pending())
    one.answered(Command(0, ext=ext))
    (failed,) = ends
    assert isinstance(failed, FailedTry)
    assert isinstance(failed.error, WireError)
    assert not failed.is_worth_another


async def test_an_answer_that_nobody_waits_for_does_no_harm() -> None:
    group = pending()
    future: asyncio.Future[Receipt | FailedTry] = group.loop.create_future()
    one = PendingSend(group, TARGET, "ID", 1, future.set_result)
    future.cancel()
    one.deadline, one.timeout_ms = 0.0, 1
    one.answered(Command(0, ext=STORED))
    assert group.weight == 0


async def test_brokers_that_fail_are_noted_and_those_that_answer_are_forgiven() -> None:
    faults = Faults(ManualClock())
    group = pending(faults)
    sent(group)[0].answered(PeerClosedError("x"))
    assert faults.is_avoided("broker-a")
    sent(group)[0].answered(Command(0, ext=STORED))
    assert not faults.is_avoided("broker-a")
    sent(group)[0].answered(Command(ResponseCode.MESSAGE_ILLEGAL.value))
    assert not faults.is_avoided("broker-a")
    late, _ = sent(group)
    late.deadline = group.loop.time() + 2.2  # It was sent 800 ms ago.
    late.answered(Command(0, ext=STORED))
    assert faults.is_avoided("broker-a")


async def test_large_messages_count_for_more() -> None:
    group = pending()
    small, _ = sent(group, 100)
    large, _ = sent(group, 4 << 20)
    assert group.weight == 1 + 257
    large.answered(PeerClosedError("x"))
    small.answered(PeerClosedError("x"))
    assert group.weight == 0


async def test_who_finds_no_room_waits_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 2)
    group = pending()
    first, second = sent(group)[0], sent(group)[0]
    assert group.is_crowded
    waiting = [asyncio.create_task(group.room(60_000)) for _ in range(3)]
    await asyncio.sleep(0)
    first.answered(Command(0, ext=STORED))
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert waiting[0] in done
    second.answered(Command(0, ext=STORED))
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)


async def test_waiting_for_room_ends_in_time_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 1)
    group = pending()
    one, _ = sent(group)
    with pytest.raises(SendFailedError, match="within 20 ms, because brokers owe answers"):
        await group.room(20)
    one.answered(Command(0, ext=STORED))
    await group.room(20)


async def test_one_who_gives_up_does_not_keep_the_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 1)
    group = pending()
    one, _ = sent(group)
    first, second = (asyncio.create_task(group.room(60_000)) for _ in range(2))
    await asyncio.sleep(0)
    one.answered(Command(0, ext=STORED))
    first.cancel()  # It was woken, and had no chance to pass that on.
    async with asyncio.timeout(10):
        while not second.done():
            sent(group)[0].answered(Command(0, ext=STORED))
            await asyncio.sleep(0)


async def test_all_have_landed_or_the_patience_is_over(caplog: pytest.LogCaptureFixture) -> None:
    group = pending()
    one, _ = sent(group)
    two, _ = sent(group)
    await group.all_ended(10)
    assert "have no answer yet" in caplog.text
    waiting = asyncio.create_task(group.all_ended(60_000))
    await asyncio.sleep(0)
    one.answered(Command(0, ext=STORED))
    await asyncio.sleep(0)
    assert not waiting.done()
    two.answered(Command(0, ext=STORED))
    async with asyncio.timeout(10):
        await waiting


def miss(error: OnelogError, refused: bool) -> FailedTry:
    return FailedTry("ID", "broker-a", error, True, 0.0, refused)


def test_one_error_for_all_tries_has_their_type_if_all_refused_alike() -> None:
    alike = given_up("orders", [miss(NotPermittedError(f"no {n}"), True) for n in "ab"])
    assert isinstance(alike, NotPermittedError)
    assert str(alike) == "no broker took the message to 'orders' in 2 tries: no a; no b"
    mixed = [miss(NotPermittedError("no"), True), miss(BrokerBusyError("busy"), True)]
    assert isinstance(given_up("orders", mixed), SendFailedError)
    gone = [miss(PeerClosedError("gone"), False)] * 2
    assert isinstance(given_up("orders", gone), SendFailedError)
