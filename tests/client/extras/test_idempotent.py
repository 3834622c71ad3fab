import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

import onelog
from onelog.client.consumer.listening import RetryLater, listening
from onelog.client.extras.idempotent import Claim, SqliteStore, idempotent
from onelog.client.message import Message, ReceivedMessage
from onelog.clock import ManualClock
from onelog.errors import MessageInProgressError
from onelog.message import LogOffset, QueueOffset, encode_host, encode_properties
from onelog.message import Message as Record
from tests.client.redelivery import handled_once

HOST = encode_host("127.0.0.1", 10911)
_offsets = iter(range(1_000_000))


def delivery(topic: str = "orders", attempt: int = 1, **properties: str) -> ReceivedMessage:
    """One delivery of a message; each has offsets of its own, as retries do."""
    offset = next(_offsets)
    record = Record(
        topic,
        0,
        QueueOffset(offset),
        LogOffset(offset * 200),
        memoryview(b"body"),
        encode_properties(properties),
        0,
        0,
        0,
        HOST,
        0,
        HOST,
        attempt - 1,
        0,
        0,
        200,
    )
    return ReceivedMessage(record, "broker-a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "handled.sqlite"


def test_a_second_delivery_is_skipped(path: Path) -> None:
    handled: list[str] = []

    @idempotent(path)
    def bill(message: ReceivedMessage) -> str:
        """Bills."""
        handled.append(message.message_id)
        return "billed"

    assert bill(delivery(UNIQ_KEY="A")) == "billed"
    assert bill(delivery(UNIQ_KEY="A")) is None
    assert bill(delivery(UNIQ_KEY="B")) == "billed"
    assert handled == ["A", "B"]
    assert (bill.__name__, bill.__doc__) == ("bill", "Bills.")


def test_retries_are_the_same_message(path: Path) -> None:
    handled: list[str] = []

    @idempotent(store=str(path))
    def bill(message: ReceivedMessage) -> None:
        handled.append(message.offset_id)

    first = delivery(UNIQ_KEY="A")
    bill(first)
    bill(delivery("%RETRY%billing", 2, UNIQ_KEY="A", RETRY_TOPIC="orders"))
    old = delivery()
    bill(old)
    bill(delivery("%RETRY%billing", 2, RETRY_TOPIC="orders", ORIGIN_MESSAGE_ID=old.offset_id))
    assert handled == [first.offset_id, old.offset_id]


def test_a_key_of_the_user_counts_within_its_topic(path: Path) -> None:
    handled: list[str] = []

    @idempotent(path, key=lambda message: message.keys[0])
    def bill(message: ReceivedMessage) -> None:
        handled.append(f"{message.topic} {message.keys[0]}")

    for topic in ("orders", "payments", "orders"):
        bill(delivery(topic, KEYS="42", UNIQ_KEY=str(next(_offsets))))
    assert handled == ["orders 42", "payments 42"]


@pytest.mark.parametrize("key", ["", None, 7])
def test_a_key_that_is_none_is_refused(path: Path, key: str) -> None:
    @idempotent(path, key=lambda _: key)
    def bill(message: ReceivedMessage) -> None:
        pytest.fail("handled without a key")

    with pytest.raises(ValueError, match="must be a text with something in it"):
        bill(delivery())


def test_a_listener_that_raises_gets_the_message_again(path: Path) -> None:
    attempts: list[int] = []

    @idempotent(path)
    def bill(message: ReceivedMessage) -> None:
        attempts.append(message.delivery_attempt)
        if len(attempts) < 3:
            raise ConnectionError("the bank does not answer")

    for attempt in (1, 2):
        with pytest.raises(ConnectionError):
            bill(delivery(attempt=attempt, UNIQ_KEY="A"))
    for attempt in (3, 4, 5):
        bill(delivery(attempt=attempt, UNIQ_KEY="A"))
    assert attempts == [1, 2, 3]


def test_of_two_deliveries_at_the_same_time_one_runs(path: Path) -> None:
    started, go_on = threading.Event(), threading.Event()
    runs: list[str] = []

    @idempotent(path)
    def bill(message: ReceivedMessage) -> None:
        runs.append(message.message_id)
        started.set()
        assert go_on.wait(30)

    first = threading.Thread(target=bill, args=(delivery(UNIQ_KEY="A"),))
    first.start()
    assert started.wait(30)
    with pytest.raises(MessageInProgressError, match=r"another delivery of orders/A"):
        bill(delivery(UNIQ_KEY="A"))
    go_on.set()
    first.join()
    bill(delivery(UNIQ_KEY="A"))
    assert runs == ["A"]


def test_many_threads_with_many_redeliveries_handle_each_message_once(path: Path) -> None:
    handled: list[str] = []

    @idempotent(path)
    def bill(message: ReceivedMessage) -> None:
        handled.append(message.message_id)

    def consume() -> None:
        for number in range(40):
            try:
                bill(delivery(UNIQ_KEY=str(number)))
            except MessageInProgressError:
                pass

    threads = [threading.Thread(target=consume) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(handled, key=int) == [str(number) for number in range(40)]


def test_what_a_dead_process_had_in_hand_is_handled_after_the_lease(path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(path, clock=clock)
    handled: list[str] = []

    @idempotent(store, lease=timedelta(seconds=10))
    def bill(message: ReceivedMessage) -> None:
        handled.append(message.message_id)

    assert store.claim("orders/A", "a process that died", 10_000) is Claim.YOURS
    clock.advance(9_999)
    with pytest.raises(MessageInProgressError):
        bill(delivery(UNIQ_KEY="A"))
    clock.advance(1)
    bill(delivery(UNIQ_KEY="A"))
    assert handled == ["A"]
    store.close()


def test_a_handled_message_is_forgotten_after_its_time(path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(path, clock=clock)
    handled: list[str] = []

    @idempotent(store, keep=timedelta(days=1))
    def bill(message: ReceivedMessage) -> None:
        handled.append(message.message_id)

    for _ in range(3):
        bill(delivery(UNIQ_KEY="A"))
        clock.advance(43_200_000)
    assert handled == ["A", "A"]
    store.close()


class Failing(SqliteStore):
    """A store that fails where it is told to."""

    fails = ""

    def _check(self, what: str) -> None:
        if self.fails == what:
            raise sqlite3.OperationalError("disk full")

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        self._check(f"claim {key}")
        return super().claim(key, owner, lease_ms)

    def finish(self, key: str, owner: str, keep_ms: int) -> None:
        self._check("finish")
        super().finish(key, owner, keep_ms)

    def release(self, key: str, owner: str) -> None:
        self._check("release")
        super().release(key, owner)


def test_without_the_store_nothing_is_handled(path: Path) -> None:
    store = Failing(path)
    store.fails = "claim orders/A"

    @idempotent(store)
    def bill(message: ReceivedMessage) -> None:
        pytest.fail("handled, and nobody knows whether for the first time")

    with pytest.raises(sqlite3.OperationalError):
        bill(delivery(UNIQ_KEY="A"))


def test_work_that_is_done_is_not_failed_because_it_could_not_be_noted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Failing(path)
    store.fails = "finish"

    @idempotent(store)
    def bill(message: ReceivedMessage) -> str:
        return "billed"

    assert bill(delivery(UNIQ_KEY="A")) == "billed"
    assert "orders/A was handled, but that could not be noted" in caplog.text
    store.close()


def test_the_listeners_error_is_what_is_raised_when_the_store_fails_too(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Failing(path)
    store.fails = "release"

    @idempotent(store)
    def bill(message: ReceivedMessage) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bill(delivery(UNIQ_KEY="A"))
    assert "stays taken until its lease ends" in caplog.text
    store.close()


# Lists.


def ids(messages: Sequence[ReceivedMessage]) -> list[str]:
    return [message.message_id for message in messages]


def test_of_a_list_only_what_is_new_is_handled(path: Path) -> None:
    handled: list[list[str]] = []

    @idempotent(path)
    def bill(messages: list[ReceivedMessage]) -> None:
        handled.append(ids(messages))

    bill([delivery(UNIQ_KEY=key) for key in "AB"])
    bill([delivery(UNIQ_KEY=key) for key in "ABCAC"])
    bill([delivery(UNIQ_KEY=key) for key in "CBA"])
    assert handled == [["A", "B"], ["C"]]


def test_a_list_that_fails_is_free_as_a_whole(path: Path) -> None:
    handled: list[list[str]] = []

    @idempotent(path)
    def bill(messages: list[ReceivedMessage]) -> None:
        handled.append(ids(messages))
        if len(handled) == 1:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        bill([delivery(UNIQ_KEY=key) for key in "AB"])
    bill([delivery(UNIQ_KEY=key) for key in "AB"])
    assert handled == [["A", "B"], ["A", "B"]]


def test_what_others_have_in_hand_of_a_list_is_handled_later(path: Path) -> None:
    store = SqliteStore(path)
    handled: list[list[str]] = []

    @idempotent(store)
    def bill(messages: list[ReceivedMessage]) -> None:
        handled.append(ids(messages))

    store.claim("orders/B", "somebody else", 60_000)
    with pytest.raises(MessageInProgressError, match=r"of orders/B is"):
        bill([delivery(UNIQ_KEY=key) for key in "ABC"])
    store.release("orders/B", "somebody else")
    bill([delivery(UNIQ_KEY=key) for key in "ABC"])
    assert handled == [["A", "C"], ["B"]]
    store.close()


def test_a_store_that_fails_in_the_middle_of_a_list_takes_nothing(path: Path) -> None:
    store = Failing(path)
    store.fails = "claim orders/B"
    handled: list[list[str]] = []

    @idempotent(store)
    def bill(messages: list[ReceivedMessage]) -> None:
        handled.append(ids(messages))

    with pytest.raises(sqlite3.OperationalError):
        bill([delivery(UNIQ_KEY=key) for key in "AB"])
    store.fails = ""
    bill([delivery(UNIQ_KEY=key) for key in "AB"])
    assert handled == [["A", "B"]]
    store.close()


# With async.


async def test_a_coroutine_runs_once_and_the_store_does_not_block_the_loop(path: Path) -> None:
    store = Failing(path)
    threads: set[int] = set()
    store._check = lambda what: threads.add(threading.get_ident())  # type: ignore[method-assign]
    started, go_on = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    @idempotent(store)
    async def bill(message: ReceivedMessage) -> str:
        runs.append(message.message_id)
        started.set()
        await go_on.wait()
        return "billed"

    first = asyncio.create_task(bill(delivery(UNIQ_KEY="A")))
    await started.wait()
    with pytest.raises(MessageInProgressError):
        await bill(delivery(UNIQ_KEY="A"))
    go_on.set()
    assert await first == "billed"
    assert await bill(delivery(UNIQ_KEY="A")) is None
    assert runs == ["A"]
    assert threading.get_ident() not in threads
    store.close()


async def test_a_coroutine_that_fails_or_is_cancelled_gets_the_message_again(path: Path) -> None:
    outcomes: list[Callable[[], object]] = []

    @idempotent(path)
    async def bill(messages: list[ReceivedMessage]) -> None:
        await asyncio.sleep(0)
        if outcomes:
            outcomes.pop()()
            await asyncio.sleep(30)

    def fail() -> None:
        raise ConnectionError

    outcomes.append(fail)
    with pytest.raises(ConnectionError):
        await bill([delivery(UNIQ_KEY="A")])
    reached = asyncio.Event()
    outcomes.append(reached.set)
    task = asyncio.create_task(bill([delivery(UNIQ_KEY="A")]))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bill([delivery(UNIQ_KEY="A")])


async def test_an_object_with_an_async_call_is_a_coroutine_listener(path: Path) -> None:
    class Billing:
        count = 0

        async def __call__(self, message: ReceivedMessage) -> None:
            self.count += 1

    billing = Billing()
    once = idempotent(path)(billing)
    await once(delivery(UNIQ_KEY="A"))
    await once(delivery(UNIQ_KEY="A"))
    assert billing.count == 1


# With brokers and consumers.


async def test_messages_that_are_delivered_again_are_handled_once(path: Path) -> None:
    await handled_once(SqliteStore(path))


def test_two_consumers_in_threads_that_get_the_same_messages_handle_each_once(path: Path) -> None:
    handled: list[bytes] = []
    seen: list[int] = []
    store = SqliteStore(path)

    with onelog.embedded() as mq, contextlib.ExitStack() as stack:
        mq.create_topic("orders", 2)
        # Two groups with one store: every message is delivered twice, at about the same time.
        for number in range(2):
            consumer = stack.enter_context(mq.push_consumer(f"billing-{number}", start="first"))

            @idempotent(store)
            def bill(message: ReceivedMessage) -> None:
                handled.append(message.body)

            def count(
                message: ReceivedMessage,
                number: int = number,
                bill: Callable[[ReceivedMessage], None] = bill,
            ) -> None:
                seen.append(number)
                try:
                    bill(message)
                except MessageInProgressError:
                    raise RetryLater(delay_level=1) from None

            consumer.subscribe("orders", listener=count)
            consumer.start()
        with mq.producer("shop") as producer:
            for number in range(50):
                producer.send(Message("orders", b"%d" % number))
        deadline = time.monotonic() + 30
        while len(handled) < 50 or min(seen.count(0), seen.count(1)) < 50:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert sorted(handled, key=int) == [b"%d" % number for number in range(50)]
    store.close()


# Without arguments.


def test_by_default_the_keys_are_in_a_file_named_after_group_topic_and_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    handled: list[str] = []

    @idempotent()
    def bill(message: ReceivedMessage) -> None:
        handled.append(message.message_id)

    for group in ("billing", "billing", "audit"):
        call = listening(bill, group, 1, (), 1_000).call
        call(delivery(UNIQ_KEY="A"))
    bill(delivery(UNIQ_KEY="A"))
    bill(delivery(UNIQ_KEY="A"))
    assert handled == ["A", "A", "A"], "once for each group, and once for none"
    files = (tmp_path / ".onelog" / "handled").rglob("*.sqlite")
    topic = delivery(UNIQ_KEY="A").topic
    assert sorted(file.parent.relative_to(tmp_path / ".onelog" / "handled") for file in files) == [
        Path("-", topic),
        Path("audit", topic),
        Path("billing", topic),
    ]


def test_two_scripts_with_a_listener_of_the_same_name_skip_nothing_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    handled: list[str] = []

    def script(group: str) -> None:
        @idempotent()
        def handle(message: ReceivedMessage) -> None:
            handled.append(group)

        listening(handle, group, 1, (), 1_000).call(delivery(UNIQ_KEY="A"))

    script("billing")
    script("shipping")
    assert handled == ["billing", "shipping"]


def test_nonsense_is_refused_where_it_is_written(path: Path) -> None:
    with pytest.raises(TypeError, match="with parentheses"):
        idempotent(lambda message: None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least a millisecond"):
        idempotent(path, lease=timedelta(0))
    with pytest.raises(ValueError, match="at least a millisecond"):
        idempotent(path, keep=timedelta(seconds=-1))
