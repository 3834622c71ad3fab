"""Messages that a POP consumer holds: for a time, which is prolonged while a listener has them.

A popped message is invisible to the other members until its lease ends. Whoever holds it tells the
broker in time: it is done (acknowledged), it shall come again at another time, or it is needed for
longer. Acknowledgements of one broker travel together: while one request is on its way, the next
is filled.

Invariants: a message is held from `hold` until `done`, `failed`, `expired` or `release`; a held
message's lease is prolonged when half of it is over; no two requests about one message are on
their way at the same time, because each but the last changes the receipt.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from onelog.client.connection.nodes import at_once, refusal
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push.fetching import Membership
from onelog.client.consumer.push.send_back import SendBack
from onelog.client.message import ReceivedMessage
from onelog.errors import LeaseNotFoundError, OnelogError, RequestRefusedError
from onelog.jobs import Job
from onelog.message import Message as Record
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.groups import SubscriptionGroupConfig
from onelog.wire.remoting.pop import (
    Popped,
    Receipt,
    change_fields,
    changed,
    encode_batch,
    fits_batch,
    receipt_fields,
)

RETRY_SECONDS = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""When a message comes again that failed for the first, second, ... time (the Java client's)."""
LEVEL_SECONDS = (
    0, 1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""What RocketMQ's delay levels mean, from 1 on."""
SUSPEND_SECONDS = 1.0
"""When an ordered queue goes on after a failure."""
RETRIES_MAX = 16
BATCH_MAX = 512
"""Messages in one acknowledgement."""
AGAIN_SECONDS = 1.0
"""How long to wait before something that failed is tried once more."""
GONE = frozenset({ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL})
"""What brokers say when a lease is over, and the message is somebody else's."""

_EVERY_CODE = frozenset(map(int, ResponseCode))

log = logging.getLogger(__name__)


class Lease:
    """One message in hand."""

    __slots__ = ("asking", "ends", "message", "receipt", "then", "topic")

    def __init__(self, topic: str, message: ReceivedMessage, receipt: Receipt, ends: float) -> None:
        self.topic = topic
        self.message = message
        self.receipt = receipt
        self.ends = ends
        """When it becomes visible to others, by the loop's clock."""
        self.asking = False
        """Whether its receipt is about to change."""
        self.then: Callable[[Lease], None] | None = None
        """What to do when it has."""


class PopLeases:
    """All messages that one consumer holds."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._instance = membership.instance
        self._group = membership.group
        self._invisible_s = membership.settings.invisible_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._held: dict[ReceivedMessage, Lease] = {}
        self._lines: dict[tuple[str, str], list[Lease]] = {}
        """What is to be acknowledged, by broker and topic."""
        self._busy: dict[asyncio.Task[None], None] = {}
        self._acknowledging: set[tuple[str, str]] = set()
        self._without_batches: set[str] = set()
        self._retries_max: dict[str, int] = {}
        self._send_back = SendBack(membership.instance, membership.group, None)

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, topic: str, broker: str, popped: Sequence[Popped]) -> list[ReceivedMessage]:
        """Take messages that have just been leased."""
        messages = []
        ends = self._loop.time() + self._invisible_s
        for record, receipt in popped:
            message = ReceivedMessage(record, broker)
            self._held[message] = Lease(topic, message, receipt, ends)
            messages.append(message)
        return messages

    # What a listener says of them.

    def done(self, messages: Iterable[ReceivedMessage]) -> None:
        """They need not come again."""
        for lease in self._taken(messages):
            self._finish(lease, self._acknowledge)

    def failed(
        self, messages: Iterable[ReceivedMessage], error: BaseException | None = None
    ) -> None:
        """They shall come again, or become dead letters."""
        level = error.delay_level if isinstance(error, RetryLater) else 0
        for lease in self._taken(messages):
            self._finish(lease, lambda each: self._spawn(self._come_again(each, level)))

    def put_off(self, messages: Iterable[ReceivedMessage], seconds: float) -> None:
        """They were not tried, and shall come again then."""
        ms = round(seconds * 1000)
        for lease in self._taken(messages):
            self._finish(lease, lambda each: self._spawn(self._postpone(each, ms)))

    def _taken(self, messages: Iterable[ReceivedMessage]) -> list[Lease]:
        found = [self._held.pop(message, None) for message in messages]
        return [lease for lease in found if lease is not None]

    def _finish(self, lease: Lease, how: Callable[[Lease], None]) -> None:
        if lease.asking:
            lease.then = how
        else:
            how(lease)

    # Prolonging.

    async def keep(self) -> None:
        """Prolong the leases of what is in hand, again and again; ends by being cancelled."""
        job = Job(f"prolonging the leases of group {self._group}")
        while True:
            await asyncio.sleep(self._invisible_s / 8)
            soon = self._loop.time() + self._invisible_s / 2
            due = [each for each in self._held.values() if each.ends <= soon and not each.asking]
            with job:
                await at_once(self._prolong, due)

    async def _prolong(self, lease: Lease) -> None:
        if lease.message not in self._held:
            return
        lease.asking = True
        try:
            await self._change(lease, round(self._invisible_s * 1000))
        except LeaseNotFoundError as error:
            self._held.pop(lease.message, None)
            log.warning("%r comes again while it is in hand: %s", lease.message, error)
        except OnelogError as error:
            log.info("the lease of %r is not prolonged yet: %s", lease.message, error)
        finally:
            lease.asking = False
            if lease.then is not None:
                lease.then(lease)

    async def _change(self, lease: Lease, invisible_ms: int) -> None:
        since = self._loop.time()
        ext = change_fields(self._group, lease.topic, lease.receipt, invisible_ms)
        answer = await self._ask(lease, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        lease.receipt = changed(lease.receipt, answer.ext)
        lease.ends = since + invisible_ms / 1000

    # Giving back.

    async def _come_again(self, lease: Lease, level: int) -> None:
        record = lease.message.raw
        limit = await self._limit(lease)
        if level < 0 or (limit is not None and record.reconsume_times >= limit):
            try:
                # Brokers of RocketMQ leave that to those who pop.
                await self._send_back(lease.message, -1)
            except OnelogError as error:
                log.warning("%r is not among the dead letters yet: %s", lease.message, error)
            else:
                self._acknowledge(lease)
                return
        await self._postpone(lease, self._delay_ms(record, level))

    async def _postpone(self, lease: Lease, invisible_ms: int) -> None:
        """Let it come again then; if the broker does not hear it, it does when the lease ends."""
        while self._loop.time() < lease.ends:
            try:
                await self._change(lease, invisible_ms)
            except LeaseNotFoundError:
                return  # It is on its way already.
            except OnelogError as error:
                log.info("%r is not given back yet: %s", lease.message, error)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    def _delay_ms(self, record: Record, level: int) -> int:
        """How long a message that failed stays invisible."""
        if level > 0:
            return LEVEL_SECONDS[min(level, len(LEVEL_SECONDS) - 1)] * 1000
        if self._membership.settings.orderly:
            return round(SUSPEND_SECONDS * 1000)
        return RETRY_SECONDS[min(record.reconsume_times, len(RETRY_SECONDS) - 1)] * 1000

    async def _limit(self, lease: Lease) -> int | None:
        """How often a message may come again: as we were told, else as the group's settings say;
        None if that is as often as it takes."""
        given = self._membership.settings.retries_max
        if given is not None or self._membership.settings.orderly:
            return given
        broker = lease.receipt.broker
        if broker not in self._retries_max:
            code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
            try:
                answer = await self._ask(lease, code, {"group": self._group})
                times = SubscriptionGroupConfig.decode(answer.body).retry_max_times
            except OnelogError as error:
                log.info("%s retries are allowed then: %s", RETRIES_MAX, error)
                return RETRIES_MAX
            self._retries_max[broker] = times
        return self._retries_max[broker]

    async def release(self, messages: Sequence[ReceivedMessage] | None = None) -> None:
        """Give back at once what no listener will get, for other members to have it."""
        for lease in self._taken(list(self._held) if messages is None else messages):
            self._finish(lease, lambda each: self._spawn(self._release(each)))
        await self.flush()

    async def _release(self, lease: Lease) -> None:
        try:
            await self._change(lease, 0)
        except OnelogError as error:
            log.info("%r comes again when its lease ends: %s", lease.message, error)

    # Acknowledging.

    def _acknowledge(self, lease: Lease) -> None:
        key = (lease.receipt.broker, lease.topic)
        self._lines.setdefault(key, []).append(lease)
        if key not in self._acknowledging:
            self._acknowledging.add(key)
            self._spawn(self._acknowledge_all(key))

    async def _acknowledge_all(self, key: tuple[str, str]) -> None:
        line = self._lines[key]
        try:
            while line:
                part = line[:BATCH_MAX]
                try:
                    await self._acknowledge_some(part)
                except OnelogError as error:
                    log.info("acknowledgements are tried again: %s", error)
                    await asyncio.sleep(AGAIN_SECONDS)
                    now = self._loop.time()
                    line[:] = [lease for lease in line if lease.ends > now]
                else:
                    del line[: len(part)]
        finally:
            self._acknowledging.discard(key)

    async def _acknowledge_some(self, leases: list[Lease]) -> None:
        broker, topic = leases[0].receipt.broker, leases[0].topic
        together = [each for each in leases if fits_batch(each.receipt)]
        if len(together) > 1 and broker not in self._without_batches:
            body = encode_batch(self._group, topic, [each.receipt for each in together])
            try:
                await self._ask(leases[0], RequestCode.BATCH_ACK_MESSAGE, None, body)
                leases = [each for each in leases if not fits_batch(each.receipt)]
            except LeaseNotFoundError as error:
                log.info("messages of %s come again, although they are done: %s", topic, error)
                leases = [each for each in leases if not fits_batch(each.receipt)]
            except _UnknownRequestError:
                self._without_batches.add(broker)
        await at_once(self._acknowledge_one, leases)

    async def _acknowledge_one(self, lease: Lease) -> None:
        ext = receipt_fields(self._group, lease.topic, lease.receipt)
        try:
            await self._ask(lease, RequestCode.ACK_MESSAGE, ext)
        except LeaseNotFoundError as error:
            log.info("%r comes again, although it is done: %s", lease.message, error)

    async def flush(self) -> None:
        """Wait until the brokers know all that was said before."""
        while self._busy:
            await asyncio.wait(list(self._busy))

    # Asking.

    async def _ask(
        self, lease: Lease, code: RequestCode, ext: dict[str, str] | None, body: bytes = b""
    ) -> Command:
        route = await self._instance.routes.get(lease.topic)
        address = route.address(lease.receipt.broker)
        answer = await self._instance.ask(address, code, ext, body, accept=_EVERY_CODE)
        if answer.code == ResponseCode.SUCCESS:
            return answer
        error = refusal(address, code, answer)
        if answer.code in GONE:
            raise LeaseNotFoundError(str(error))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise _UnknownRequestError(str(error))
        raise error

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._instance.spawn(work)
        self._busy[task] = None
        task.add_done_callback(lambda done: self._busy.pop(done, None))


class _UnknownRequestError(RequestRefusedError):
    """A broker that is too old."""
