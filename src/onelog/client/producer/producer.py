"""Producers: sending messages, with asyncio and from threads.

    async with AsyncProducer("orders-app", nameserver="127.0.0.1:9876") as producer:
        receipt = await producer.send(Message("orders", b"...", tags="paid", keys=["42"]))

    with Producer("orders-app", nameserver="127.0.0.1:9876") as producer:
        receipt = producer.send(Message("orders", b"...", tags="paid", keys=["42"]))

Messages go round the topic's queues. If a broker cannot be reached, does not answer or is busy,
another one is tried; so a message may be stored twice, then with the same unique id. If `send`
returns, the message is stored. If it cannot be sent, the error says why, for each try.

An `AsyncProducer` belongs to the event loop it was started on. Any number of sends may be made at a
time; beyond a limit they wait for one another. A `Producer` has an `AsyncProducer` on the
background loop. Threads put their messages into one inbox, and the first one that does so wakes the
loop; so under load one wake-up serves many sends.

Invariants: any number of threads may use a `Producer` at a time; each call returns or raises on its
own. A call that is interrupted (Ctrl-C) takes nothing from the others, though its message may still
be stored.
"""

import _thread
import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from datetime import timedelta
from threading import BoundedSemaphore
from typing import Any, Self, TypeVar, Unpack

from onelog.client import hooks as hooking
from onelog.client.connection import background
from onelog.client.connection.instance import Instance
from onelog.client.connection.routes import QUEUES
from onelog.client.hooks import SendContext, SendHook
from onelog.client.message import Message, Queue, Receipt, ReceivedMessage
from onelog.client.options import ProducerOptions, check_names, milliseconds, settings
from onelog.client.producer.delivery import Delivery
from onelog.client.producer.outgoing import (
    batch_body,
    check_batch,
    check_body,
    packed,
    properties_of,
)
from onelog.client.producer.pending_sends import SEND, FailedTry, Parcel
from onelog.client.producer.requests import Requests
from onelog.client.producer.send_targets import Channel
from onelog.client.producer.transactions import (
    Checker,
    LocalTransaction,
    TransactionReceipt,
    Transactions,
    TransactionState,
    checked_state,
)
from onelog.client.producer.unique_id import unique_id
from onelog.client.synchronous import SyncClient, waiting
from onelog.errors import ClientClosedError, InvalidGroupError, MessageError
from onelog.record.compression import Compression
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.recall_handle import RecallHandle
from onelog.wire.remoting.trace import MessageKind

THREAD_BYTES = 64 << 10
"""Bodies from here on are compressed beside the event loop: that takes a millisecond and more."""
GROUP_CHARACTERS_MAX = 120

_running_loop = asyncio.get_running_loop

ASYNC_MAX = 8192
"""Messages of `send_async` that may be unfinished; the next one waits."""
LOOK_SECONDS = 5.0
"""How often a waiting thread makes sure that the background loop is alive."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """A producer's options, as they hold."""

    retries: int = 2
    body_bytes_max: int = 4 << 20
    compress_over_bytes: int = 4096
    form: Compression = Compression.ZLIB
    queues: int = QUEUES
    avoid_faults: bool = False
    hooks: tuple[SendHook, ...] = ()
    checker: Checker | None = None


class AsyncProducer:
    """A producer for one event loop; `Producer` is the same for threads."""

    def __init__(self, group: str, **options: Unpack[ProducerOptions]) -> None:
        check_names("AsyncProducer", options, ProducerOptions)
        _check_group(group)
        self.group = group
        self.settings = made = settings(ProducerSettings, options)
        self.instance = Instance(options)
        self.instance.producer_groups.add(self.instance.wrap(group))
        self.delivery = Delivery(
            self.instance,
            self.instance.wrap(group),
            retries=made.retries,
            queues=made.queues,
            avoid_faults=made.avoid_faults,
        )
        self._hooks = made.hooks
        self._plain_bytes_max = min(made.body_bytes_max, made.compress_over_bytes)
        self._timeout_ms = self.instance.timeout_ms
        self.transactions = Transactions(self)
        self._requests = Requests(self)

    # Life.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin, on the running event loop. Nothing is connected before the first message."""
        await self.instance.start()
        self.delivery.start()
        await self.transactions.start()
        await hooking.start_hooks(self._hooks, self.instance)

    async def close(self) -> None:
        """Wait for what is on its way, then leave. Closing twice does no harm."""
        if not self.instance.can_close():
            return
        if self.instance.is_open:
            await self.delivery.close()
            self._requests.close()
            await hooking.close_hooks(self._hooks)
        await self.instance.close()

    # Sending.

    async def send(
        self,
        message: Message,
        *,
        order_key: str | None = None,
        queue: Queue | None = None,
        timeout: timedelta | float | None = None,
    ) -> Receipt:
        """Send a message, and return when a broker has stored it.

        Messages with the same `order_key` go to the same queue, in the order in which they are
        sent if each is awaited before the next: to queue number |h| modulo the number of queues,
        where h is Java's hash of the key, so Java's SelectMessageQueueByHash chooses the same.
        With a `queue` it goes there and nowhere else. `timeout` is for all tries together; asking
        for the way there for the first time is not counted.
        """
        timeout_ms = self._timeout_ms if timeout is None else milliseconds("timeout", timeout)
        # On another loop, before the start and after the end, `dispatch` says what is wrong.
        if (loop := self.instance.loop) is not None and loop is _running_loop():
            if self.delivery.pending.waiting:
                await self.delivery.pending.room(timeout_ms)
            future: asyncio.Future[Receipt | FailedTry] = loop.create_future()
            if self.send_now(message, order_key, queue, timeout_ms, future.set_result):
                result = await future
                if type(result) is Receipt:
                    return result
                assert isinstance(result, FailedTry)
                return await self.deliver_again(message, result, order_key, queue, timeout_ms)
        return await self.dispatch(message, order_key=order_key, queue=queue, timeout=timeout)

    async def send_oneway(
        self, message: Message, *, order_key: str | None = None, queue: Queue | None = None
    ) -> None:
        """Send a message and want no answer: it is fast, and nobody knows whether it arrived."""
        parcel = await self._parcel(message, order_key, queue, self._timeout_ms)
        parcel, context = self._announced(message, parcel._replace(is_oneway=True))
        if context is None:
            await self.delivery.deliver(parcel)
            return
        with self._reported_after(context):
            await self.delivery.deliver(parcel)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        order_key: str | None = None,
        queue: Queue | None = None,
        timeout: timedelta | float | None = None,
    ) -> Receipt:
        """Send messages to one topic in one request: all are stored, one after the other, or none.

        Together they may not be larger than one message. `message_id` of the receipt is the ids of
        all of them between commas.
        """
        messages = tuple(messages)
        topic = check_batch(messages)
        _check_choice(topic, order_key, queue)
        timeout_ms = self._timeout_ms if timeout is None else milliseconds("timeout", timeout)
        ids = [unique_id() for _ in messages]
        context = None
        if self._hooks:
            context = self._context(messages, ",".join(ids), None)
            hooking.before_send(self._hooks, context)
        extra = context.properties if context is not None else None
        parcel = Parcel(
            topic,
            ",".join(ids),
            f"UNIQ_KEY\x01{unique_id()}\x02",
            batch_body(messages, ids, extra, self.settings.body_bytes_max),
            code=RequestCode.SEND_BATCH_MESSAGE,
            order_key=order_key,
            queue=queue,
            timeout_ms=timeout_ms,
        )
        return await self._delivered(parcel, context)

    async def send_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        *,
        order_key: str | None = None,
        queue: Queue | None = None,
        timeout: timedelta | float | None = None,
    ) -> TransactionReceipt:
        """Send a message that is delivered if `local` returns COMMIT (see `transactions`).

        The option `checker` is needed, for brokers that did not hear how it ended.
        """
        return await self.transactions.send(
            message, local, order_key=order_key, queue=queue, timeout=timeout
        )

    async def request(
        self,
        message: Message,
        *,
        order_key: str | None = None,
        queue: Queue | None = None,
        timeout: timedelta | float | None = None,
    ) -> ReceivedMessage:
        """Send a message and wait for the reply to it; `RequestTimeoutError` if none comes."""
        return await self._requests.request(
            message, order_key=order_key, queue=queue, timeout=timeout
        )

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: timedelta | float | None = None,
    ) -> Receipt:
        """Answer a request that a consumer got; `ReplyFailedError` if it did not arrive."""

        def made(topic: str) -> Message:
            return Message(topic, body, tags=tags, keys=keys, properties=properties or {})

        return await self._requests.reply(request, made, timeout)

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """The queues that a topic's messages can go to now."""
        targets = await self.delivery.targets(topic)
        return tuple(target.queue for target in targets.all)

    async def recall(self, topic: str, handle: str) -> str:
        """Take back a message that is to be delivered later, by the handle of its receipt.

        Returns its id; `RequestRefusedError` if it is too late.
        """
        broker = RecallHandle.decode(handle).broker
        self.instance.check_open()
        route = await self.instance.routes.get_for_sending(self.instance.wrap(topic))
        ext = {
            "producerGroup": self.instance.wrap(self.group),
            "topic": self.instance.wrap(topic),
            "recallHandle": handle,
            "bname": broker,
        }
        answer = await self.instance.ask(route.address(broker), RequestCode.RECALL_MESSAGE, ext)
        return answer.ext.get("msgId", "")

    # For those who build on it.

    def send_now(
        self,
        message: Message,
        order_key: str | None,
        queue: Queue | None,
        timeout_ms: int,
        finish: Callable[[Receipt | FailedTry], None],
    ) -> bool:
        """Send and call `finish` later; False if that cannot be done without waiting.

        To be called on the producer's own loop.
        """
        if (
            len(message.body) > self._plain_bytes_max
            or message.delay is not None
            or message.deliver_at is not None
            or self._hooks
        ):
            return False
        if order_key is not None or queue is not None:
            _check_choice(message.topic, order_key, queue)
        return self.delivery.post(message, order_key, queue, timeout_ms, finish)

    async def dispatch(
        self,
        message: Message,
        *,
        order_key: str | None = None,
        queue: Queue | None = None,
        timeout: timedelta | float | None = None,
        extra: Mapping[str, str] | None = None,
        sys_flag: int = 0,
        code: RequestCode = SEND,
    ) -> Receipt:
        """Send with further properties and flags: transactions, requests and replies need them."""
        timeout_ms = self._timeout_ms if timeout is None else milliseconds("timeout", timeout)
        parcel = await self._parcel(message, order_key, queue, timeout_ms, extra)
        parcel = parcel._replace(sys_flag=parcel.sys_flag | sys_flag, code=code)
        return await self._delivered(*self._announced(message, parcel, extra))

    async def deliver_again(
        self,
        message: Message,
        failed: FailedTry,
        order_key: str | None,
        queue: Queue | None,
        timeout_ms: int,
    ) -> Receipt:
        """Go on with a message whose first try failed."""
        parcel = Parcel(
            message.topic,
            failed.message_id,
            properties_of(message, failed.message_id),
            message.body,
            message.flag,
            order_key=order_key,
            queue=queue,
            timeout_ms=timeout_ms,
        )
        return await self.delivery.deliver(parcel, failed)

    # Inside.

    async def _parcel(
        self,
        message: Message,
        order_key: str | None,
        queue: Queue | None,
        timeout_ms: int,
        extra: Mapping[str, str] | None = None,
    ) -> Parcel:
        _check_choice(message.topic, order_key, queue)
        body, sys_flag = message.body, 0
        check_body(message.topic, len(body), self.settings.body_bytes_max)
        if len(body) > self.settings.compress_over_bytes:
            if len(body) >= THREAD_BYTES:
                body, sys_flag = await asyncio.to_thread(packed, body, self.settings.form)
            else:
                body, sys_flag = packed(body, self.settings.form)
        message_id = unique_id()
        return Parcel(
            message.topic,
            message_id,
            properties_of(message, message_id, extra),
            body,
            message.flag,
            sys_flag,
            order_key=order_key,
            queue=queue,
            timeout_ms=timeout_ms,
            is_timed=message.delay is not None or message.deliver_at is not None,
        )

    def _context(
        self, messages: Sequence[Message], message_id: str, extra: Mapping[str, str] | None
    ) -> SendContext:
        first = messages[0]
        kind = MessageKind.NORMAL
        if extra is not None and "TRAN_MSG" in extra:
            kind = MessageKind.TRANSACTION_HALF
        elif first.delay is not None or first.deliver_at is not None or first.delay_level:
            kind = MessageKind.DELAY
        return SendContext(self.group, messages, kind, message_id=message_id)

    async def _delivered(self, parcel: Parcel, context: SendContext | None) -> Receipt:
        delivery = self.delivery
        self.instance.check_open()
        if delivery.pending.is_crowded:
            await delivery.pending.room(parcel.timeout_ms)
        if context is None:
            return await delivery.deliver(parcel)
        with self._reported_after(context) as tried:
            context.receipt = await delivery.deliver(parcel, tried=tried)
        return context.receipt

    def _announced(
        self, message: Message, parcel: Parcel, extra: Mapping[str, str] | None = None
    ) -> tuple[Parcel, SendContext | None]:
        """A parcel with what the hooks add to it, after they were called."""
        if not self._hooks:
            return parcel, None
        context = self._context([message], parcel.message_id, extra)
        hooking.before_send(self._hooks, context)
        if context.properties:
            added = {**context.properties, **(extra or {})}
            properties = properties_of(message, parcel.message_id, added)
            parcel = parcel._replace(properties=properties)
        return parcel, context

    @contextlib.contextmanager
    def _reported_after(self, context: SendContext) -> Iterator[list[Channel]]:
        """Report to the hooks how a send ended; gives the list for the brokers that are tried."""
        tried: list[Channel] = []
        try:
            yield tried
        except BaseException as error:
            context.error = error
            raise
        finally:
            context.address = str(tried[-1].address) if tried else ""
            hooking.after_send(self._hooks, context)


def _check_choice(topic: str, order_key: str | None, queue: Queue | None) -> None:
    if order_key is not None and queue is not None:
        raise MessageError("order_key and queue exclude one another: give one")
    if order_key is not None and not isinstance(order_key, str):
        raise TypeError(f"order_key must be a text, not {type(order_key).__name__}")
    if queue is not None and queue.topic != topic:
        raise MessageError(f"{queue} is no queue of topic {topic!r}")


def _check_group(group: str) -> None:
    if not isinstance(group, str) or not group:
        raise InvalidGroupError(f"a producer needs the name of its group, not {group!r}")
    if len(group) > GROUP_CHARACTERS_MAX:
        raise InvalidGroupError(
            f"group name {group[:40]!r}... has {len(group)} characters; the limit is "
            f"{GROUP_CHARACTERS_MAX}"
        )


@dataclass(slots=True, eq=False)
class _Sending:
    """A message that a thread wants sent, and how it learns what became of it."""

    producer: "Producer"
    message: Message
    order_key: str | None
    queue: Queue | None
    timeout_ms: int
    # A bare lock, taken: the cheapest thing that one thread can wait for another with.
    _lock: _thread.LockType = field(default_factory=_thread.allocate_lock)
    _result: Receipt | BaseException | None = None

    def __post_init__(self) -> None:
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
            background.current().check_usable()
        result = self._result
        if type(result) is Receipt:
            return result
        assert isinstance(result, BaseException)
        try:
            raise result
        finally:
            # The error's traceback would keep this frame, and the frame the error.
            del result


@dataclass(slots=True, eq=False)
class _AsyncSending(_Sending):
    """The same, with a future."""

    future: Future[Receipt] = field(default_factory=Future)

    def settle(self, result: Receipt | BaseException) -> None:
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
        future = sending.future
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
            assert self._background is not None
            self._background.loop.call_soon_threadsafe(self._drain)

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
