"""Flights: receipts, misses with words that name the broker, and room for only so many."""

import asyncio

import pytest

from onelog.client.connection.address import Address
from onelog.client.connection.faults import Faults
from onelog.client.message import Queue, Receipt, SendStatus
from onelog.client.producer import pending_sends as flights_module
from onelog.client.producer.pending_sends import Flight, Flights, Missed, given_up
from onelog.client.producer.send_targets import Channel, Place
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
PLACE = Place(
    Queue("orders", "broker-a", 1), Channel("broker-a", Address("127.0.0.1", 10911)), TEMPLATE
)
STORED = {"msgId": "OFFSET", "queueId": "1", "queueOffset": "42", "transactionId": "TX"}


def flights(faults: Faults | None = None) -> Flights:
    made = Flights(faults)
    made.loop = asyncio.get_running_loop()
    return made


def flight(group: Flights, size: int = 1) -> tuple[Flight, list[Receipt | Missed]]:
    ends: list[Receipt | Missed] = []
    made = Flight(group, PLACE, "ID", size, ends.append)
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
    one, ends = flight(flights())
    one.answered(Command(int(code), ext={**STORED, "recallHandle": "H"}))
    assert ends == [Receipt("ID", "OFFSET", PLACE.queue, 42, status, "H", "TX")]


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
    one, ends = flight(flights())
    one.answered(Command(code.value, remark="because"))
    (missed,) = ends
    assert isinstance(missed, Missed)
    assert type(missed.error) is kind
    assert "127.0.0.1:10911 refused SEND_MESSAGE_V2: because" in str(missed.error)
    assert (missed.is_worth_another, missed.was_refused) == (again, True)
    assert (missed.message_id, missed.broker) == ("ID", "broker-a")


async def test_no_answer_is_told_with_the_brokers_name_and_address() -> None:
    for error, words in (
        (PeerTimeoutError("x"), "did not answer within 3000 ms"),
        (PeerClosedError("x"), "closed the connection before it answered"),
    ):
        one, ends = flight(flights())
        one.answered(error)
        (missed,) = ends
        assert isinstance(missed, Missed)
        assert str(missed.error) == f"broker-a (127.0.0.1:10911) {words}"
        assert missed.is_worth_another
        assert type(missed.error) is type(error)


@pytest.mark.parametrize("ext", [{}, {"msgId": "x"}, {"msgId": "x", "queueOffset": "?"}])
async def test_a_receipt_that_cannot_be_read_is_not_tried_again(ext: dict[str, str]) -> None:
    one, ends = flight(flights())
    one.answered(Command(0, ext=ext))
    (missed,) = ends
    assert isinstance(missed, Missed)
    assert isinstance(missed.error, WireError)
    assert not missed.is_worth_another


async def test_an_answer_that_nobody_waits_for_does_no_harm() -> None:
    group = flights()
    future: asyncio.Future[Receipt | Missed] = group.loop.create_future()
    one = Flight(group, PLACE, "ID", 1, future.set_result)
    future.cancel()
    one.deadline, one.timeout_ms = 0.0, 1
    one.answered(Command(0, ext=STORED))
    assert group.in_flight == 0


async def test_brokers_that_fail_are_noted_and_those_that_answer_are_forgiven() -> None:
    faults = Faults(ManualClock())
    group = flights(faults)
    flight(group)[0].answered(PeerClosedError("x"))
    assert faults.is_avoided("broker-a")
    flight(group)[0].answered(Command(0, ext=STORED))
    assert not faults.is_avoided("broker-a")
    flight(group)[0].answered(Command(ResponseCode.MESSAGE_ILLEGAL.value))
    assert not faults.is_avoided("broker-a")
    late, _ = flight(group)
    late.deadline = group.loop.time() + 2.2  # It was sent 800 ms ago.
    late.answered(Command(0, ext=STORED))
    assert faults.is_avoided("broker-a")


async def test_large_messages_count_for_more() -> None:
    group = flights()
    small, _ = flight(group, 100)
    large, _ = flight(group, 4 << 20)
    assert group.in_flight == 1 + 257
    large.answered(PeerClosedError("x"))
    small.answered(PeerClosedError("x"))
    assert group.in_flight == 0


async def test_who_finds_no_room_waits_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "IN_FLIGHT_MAX", 2)
    group = flights()
    first, second = flight(group)[0], flight(group)[0]
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
    monkeypatch.setattr(flights_module, "IN_FLIGHT_MAX", 1)
    group = flights()
    one, _ = flight(group)
    with pytest.raises(SendFailedError, match="within 20 ms, because brokers owe answers"):
        await group.room(20)
    one.answered(Command(0, ext=STORED))
    await group.room(20)


async def test_one_who_gives_up_does_not_keep_the_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flights_module, "IN_FLIGHT_MAX", 1)
    group = flights()
    one, _ = flight(group)
    first, second = (asyncio.create_task(group.room(60_000)) for _ in range(2))
    await asyncio.sleep(0)
    one.answered(Command(0, ext=STORED))
    first.cancel()  # It was woken, and had no chance to pass that on.
    async with asyncio.timeout(10):
        while not second.done():
            flight(group)[0].answered(Command(0, ext=STORED))
            await asyncio.sleep(0)


async def test_all_have_landed_or_the_patience_is_over(caplog: pytest.LogCaptureFixture) -> None:
    group = flights()
    one, _ = flight(group)
    two, _ = flight(group)
    await group.landed(10)
    assert "have no answer yet" in caplog.text
    waiting = asyncio.create_task(group.landed(60_000))
    await asyncio.sleep(0)
    one.answered(Command(0, ext=STORED))
    await asyncio.sleep(0)
    assert not waiting.done()
    two.answered(Command(0, ext=STORED))
    async with asyncio.timeout(10):
        await waiting


def miss(error: OnelogError, refused: bool) -> Missed:
    return Missed("ID", "broker-a", error, True, 0.0, refused)


def test_one_error_for_all_tries_has_their_type_if_all_refused_alike() -> None:
    alike = given_up("orders", [miss(NotPermittedError(f"no {n}"), True) for n in "ab"])
    assert isinstance(alike, NotPermittedError)
    assert str(alike) == "no broker took the message to 'orders' in 2 tries: no a; no b"
    mixed = [miss(NotPermittedError("no"), True), miss(BrokerBusyError("busy"), True)]
    assert isinstance(given_up("orders", mixed), SendFailedError)
    gone = [miss(PeerClosedError("gone"), False)] * 2
    assert isinstance(given_up("orders", gone), SendFailedError)
