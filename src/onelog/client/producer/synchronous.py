"""Sending messages from threads.

    with Producer("orders-app", nameserver="127.0.0.1:9876") as producer:
        receipt = producer.send(Message("orders", b"...", tags="paid", keys=["42"]))

The work is done by an `AsyncProducer` on the background loop. Threads put their messages into one
inbox, and the first one that does so wakes the loop; so under load one wake-up serves many sends.

Invariants: any number of threads may use a producer at a time; each call returns or raises on its
own, and one that is interrupted (Ctrl-C) takes nothing from the others, though its message may
still be stored.
"""

import _thread
import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from datetime import timedelta
from threading import BoundedSemaphore
from typing import Any, TypeVar, Unpack

from onelog.client.connection import background
from onelog.client.message import Message, Queue, Receipt
from onelog.client.options import ProducerOptions, check_names, milliseconds
from onelog.client.producer.asynchronous import AsyncProducer
from onelog.client.producer.pending_sends import FailedTry
from onelog.client.producer.transactions import (
    LocalTransaction,
    TransactionReceipt,
    TransactionState,
    checked_state,
)
from onelog.client.synchronous import SyncClient, waiting
from onelog.errors import ClientClosedError

ASYNC_MAX = 8192
"""Messages of `send_async` that may be unfinished; the next one waits."""
LOOK_SECONDS = 5.0
"""How often a waiting thread makes sure that the background loop is alive."""

T = TypeVar("T")


class _Sending:
    """A message that a thread wants sent, and how it learns what became of it."""

    __slots__ = ("_lock", "_result", "message", "order_key", "producer", "queue", "timeout_ms")

    def __init__(
        self,
        producer: "Producer",
        message: Message,
        order_key: str | None,
        queue: Queue | None,
        timeout_ms: int,
    ) -> None:
        self.producer = producer
        self.message = message
        self.order_key = order_key
        self.queue = queue
        self.timeout_ms = timeout_ms
        self._result: Receipt | BaseException | None = None
        # A bare lock, taken: the cheapest thing that one thread can wait for another with.
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def finish(self, result: Receipt | FailedTry) -> None:
        """The first try is over; called on the loop."""
        if type(result) is Receipt:
            self.settle(result)
        else:
            assert isinstance(result, FailedTry)
            self.producer.go_on(self, result)

    def settle(self, result: Receipt | BaseException) -> None:
        """All is over; called on the loop."""
        self._result = result
        self._lock.release()

    def wait(self) -> Receipt:
        """The receipt, or what went wrong; called in the thread."""
        while not self._lock.acquire(timeout=LOOK_SECONDS):
            background.home().check_usable()
        result = self._result
        if type(result) is Receipt:
            return result
        assert isinstance(result, BaseException)
        try:
            raise result
        finally:
            # The error's traceback would keep this frame, and the frame the error.
            del result


class _AsyncSending(_Sending):
    """The same, with a future."""

    __slots__ = ("future",)

    future: Future[Receipt]

    def settle(self, result: Receipt | BaseException) -> None:
        """All is over; called on the loop."""
        self.producer.settled()
        try:
            if type(result) is Receipt:
                self.future.set_result(result)
            else:
                assert isinstance(result, BaseException)
                self.future.set_exception(result)
        except InvalidStateError:
            pass  # It was cancelled.


class Producer(SyncClient[AsyncProducer]):
    """A producer for threads; `AsyncProducer` is the same for an event loop."""

    def __init__(self, group: str, **options: Unpack[ProducerOptions]) -> None:
        check_names("Producer", options, ProducerOptions)
        super().__init__(AsyncProducer(group, **options), f"the producer of group {group!r}")
        self._inbox: deque[_Sending] = deque()
        self._is_woken = False
        self._unfinished = BoundedSemaphore(ASYNC_MAX)
        self._timeout_ms = self._core.instance.timeout_ms

    @property
    def group(self) -> str:
        """The producer group."""
        return self._core.group

    def _begin(self) -> None:
        background.run(self._core.start())

    # Sending.

    def send(
        self,
        message: Message,
        *,
        order_key: str | None = None,
        queue: Queue | None = None,
        timeout: timedelta | float | None = None,
    ) -> Receipt:
        """Send a message, and return when a broker has stored it.

        Messages with the same `order_key` go to the same queue, in the order in which they are
        sent: to queue number |h| modulo the number of queues, where h is Java's hash of the key,
        so Java's SelectMessageQueueByHash chooses the same. With a `queue` it goes there and
        nowhere else. `timeout` is for all tries together; asking for the way there for the first
        time is not counted.
        """
        self.check_usable()
        sending = _Sending(self, message, order_key, queue, self._limit_ms(timeout))
        self._put(sending)
        return sending.wait()

    def send_async(
        self,
        message: Message,
        callback: Callable[[Receipt | BaseException], None] | None = None,
        *,
        order_key: str | None = None,
        queue: Queue | None = None,
        timeout: timedelta | float | None = None,
    ) -> Future[Receipt]:
        """Send a message without waiting; the future gets the receipt or what went wrong.

        So does the callback, if there is one. It is called on the background loop and must be
        quick: it holds up all other sends. With many messages unfinished this call does wait.
        """
        self.check_usable()
        sending = _AsyncSending(self, message, order_key, queue, self._limit_ms(timeout))
        future: Future[Receipt] = Future()
        sending.future = future
        if callback is not None:
            future.add_done_callback(lambda done: callback(done.exception() or done.result()))
        self._unfinished.acquire()
        self._put(sending)
        return future

    send_oneway = waiting(AsyncProducer.send_oneway)
    send_batch = waiting(AsyncProducer.send_batch)

    def send_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        *,
        order_key: str | None = None,
        queue: Queue | None = None,
        timeout: timedelta | float | None = None,
    ) -> TransactionReceipt:
        """Send a message that is delivered if `local` returns COMMIT (see `transactions`).

        `local` is called in this thread. The option `checker` is needed, for brokers that did not
        hear how it ended; it is called in threads of its own.
        """
        transactions = self._core.transactions
        half = self._run(
            transactions.prepare(message, order_key=order_key, queue=queue, timeout=timeout)
        )
        state = TransactionState.UNKNOWN
        try:
            result = half.begun(local)
            if inspect.isawaitable(result):
                result = self._run(_awaited(result))
            state = checked_state(result, local)
        finally:
            self._run(transactions.end(half, state))
        return TransactionReceipt(half.receipt, half.transaction_id, state)

    request = waiting(AsyncProducer.request)
    reply = waiting(AsyncProducer.reply)
    queues = waiting(AsyncProducer.queues)
    recall = waiting(AsyncProducer.recall)

    # Called by what waits.

    def go_on(self, sending: _Sending, failed: FailedTry) -> None:
        """A first try failed; called on the loop."""
        again = self._core.deliver_again(
            sending.message, failed, sending.order_key, sending.queue, sending.timeout_ms
        )
        self._settle_later(sending, again)

    def settled(self) -> None:
        """A message of `send_async` is done with."""
        self._unfinished.release()

    # Inside.

    def _limit_ms(self, timeout: timedelta | float | None) -> int:
        return self._timeout_ms if timeout is None else milliseconds("timeout", timeout)

    def _put(self, sending: _Sending) -> None:
        self._inbox.append(sending)
        # Whoever finds it False wakes the loop. `_drain` sets it to False before it looks, so
        # what is added after that look finds it False.
        if not self._is_woken:
            self._is_woken = True
            assert self._home is not None
            self._home.loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        """Send what is in the inbox; called on the loop."""
        self._is_woken = False
        inbox, core = self._inbox, self._core
        while inbox:
            sending = inbox.popleft()
            try:
                if core.send_now(
                    sending.message,
                    sending.order_key,
                    sending.queue,
                    sending.timeout_ms,
                    sending.finish,
                ):
                    continue
            except Exception as error:
                sending.settle(error)
                continue
            slowly = core.send(
                sending.message,
                order_key=sending.order_key,
                queue=sending.queue,
                timeout=sending.timeout_ms / 1000,
            )
            self._settle_later(sending, slowly)

    def _settle_later(self, sending: _Sending, work: Coroutine[Any, Any, Receipt]) -> None:
        async def settle() -> None:
            try:
                sending.settle(await work)
            except asyncio.CancelledError:
                reason = "the producer was closed while the message was on its way"
                sending.settle(ClientClosedError(reason))
                raise
            except Exception as error:
                sending.settle(error)

        self._core.instance.spawn(settle())


async def _awaited(result: Awaitable[T]) -> T:
    return await result
