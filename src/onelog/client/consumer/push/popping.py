"""Popping: brokers lease messages to members that ask, instead of assigning queues to them.

Any member can be given any message. So a slow member holds up nobody, and the messages of a member
that dies go to the others when their leases end. The broker decides which queues to ask for
(QUERY_ASSIGNMENT); where an administrator has not set the group to POP, every member asks for all
queues of every broker.

A popped message is invisible to the other members until its lease ends. In time its holder says
that it is done (acknowledged), shall come again at another time, or is needed for longer.
Acknowledgements for one broker travel together: while one request is on its way, the next
is filled.

Invariants: a broker has at most one open request of this member per assigned queue. No more is
asked for while the listeners have enough. Every leased message is submitted to them, or given back
at once if the consumer is about to stop. A message is held from `hold` until `done`, `failed`,
`put_off` or `release`; its lease is prolonged when half of it is over. No two requests about one
message are on their way at the same time, because each but the last changes the receipt.
"""

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onelog.client.connection.address import Address
from onelog.client.connection.nodes import at_once, end_all, forgiven, refusal
from onelog.client.connection.routes import Route
from onelog.client.consumer.allocation import strategy_name
from onelog.client.consumer.fetching import HOLD_MS, FetchedQueue, Fetching, Membership
from onelog.client.consumer.listening import RetryLater, level_seconds
from onelog.client.consumer.offsets import BrokerOffsets, offset_at, queue_of
from onelog.client.consumer.push.send_back import SendBack
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import (
    ConfigError,
    LeaseNotFoundError,
    OnelogError,
    RequestRefusedError,
)
from onelog.message import Message as Record
from onelog.names import RETRY_PREFIX
from onelog.net.tasks import repeat
from onelog.rocketmq.properties import LEVELS_SECONDS
from onelog.wire.remoting import pop
from onelog.wire.remoting.clients import AssignmentAnswer, AssignmentRequest, PopQueueInfo
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.groups import SubscriptionGroupConfig

RETRY_SECONDS = LEVELS_SECONDS[2:]
"""When a message comes again that failed for the first, second, ... time (the Java client's)."""
SUSPEND_SECONDS = 1.0
"""When an ordered queue goes on after a failure."""
RETRIES_MAX = 16
BATCH_MAX = 512
"""Messages in one acknowledgement."""
AGAIN_SECONDS = 1.0
"""How long to wait before something that failed is tried once more."""
GONE = frozenset({ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL})
"""What brokers answer when a lease is over, and the message is another member's."""

IN_HAND_MAX = 96
"""Messages of one assigned queue in hand at which no more are asked for, or more if more than half
as many listeners run."""
BUSY_SECONDS = 0.05

_EVERY_CODE = frozenset(map(int, ResponseCode))
_NOTHING = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND})
_LATER = frozenset({ResponseCode.POLLING_FULL, ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_BUSY})
_BROKERS_STRATEGIES = ("AVG", "AVG_BY_CIRCLE")

_attempts = itertools.count(1)

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Lease:
    """One message in hand."""

    topic: str
    message: ReceivedMessage
    receipt: pop.Receipt
    address: Address
    """The broker that leased it: the master, or a slave in its place."""
    ends: float
    """When it becomes visible to others, by the loop's clock."""
    asking: bool = False
    """Whether its receipt is about to change."""
    then: "Callable[[Lease], None] | None" = None
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
        self._lines: dict[tuple[Address, str], list[Lease]] = {}
        """What is to be acknowledged, by where it was leased and by topic."""
        self._busy: dict[asyncio.Task[None], None] = {}
        self._acknowledging: set[tuple[Address, str]] = set()
        self._without_batches: set[str] = set()
        self._retries_max: dict[str, int] = {}
        self._send_back = SendBack(membership.instance, membership.group, None)

    def __len__(self) -> int:
        return len(self._held)

    def hold(
        self, queue: Queue, address: Address, leased: Sequence[pop.Popped]
    ) -> list[ReceivedMessage]:
        """Take messages that have just been leased."""
        messages = []
        ends = self._loop.time() + self._invisible_s
        for record, receipt in leased:
            message = ReceivedMessage(record, queue.broker)
            self._held[message] = Lease(queue.topic, message, receipt, address, ends)
            messages.append(message)
        return messages

    # What a listener says of them.

    def done(self, messages: Iterable[ReceivedMessage]) -> None:
        """They need not come again."""
        self._settle(messages, self._acknowledge)

    def failed(self, messages: Iterable[ReceivedMessage], error: BaseException | None) -> None:
        """They shall come again, or become dead letters."""
        level = error.delay_level if isinstance(error, RetryLater) else 0
        self._settle(messages, lambda lease: self._spawn(self._come_again(lease, level)))

    def put_off(self, messages: Iterable[ReceivedMessage], seconds: float) -> None:
        """They were not tried, and shall come again then."""
        ms = round(seconds * 1000)
        self._settle(messages, lambda lease: self._spawn(self._postpone(lease, ms)))

    def _settle(self, messages: Iterable[ReceivedMessage], how: Callable[[Lease], None]) -> None:
        for message in messages:
            lease = self._held.pop(message, None)
            if lease is not None and lease.asking:
                lease.then = how
            elif lease is not None:
                how(lease)

    # Prolonging.

    async def keep(self) -> None:
        """Prolong the leases of what is in hand, again and again; ends by being cancelled."""

        def prolong_some() -> Awaitable[object]:
            soon = self._loop.time() + self._invisible_s / 2
            due = [each for each in self._held.values() if each.ends <= soon and not each.asking]
            return at_once(self._prolong, due)

        name = f"prolonging the leases of group {self._group}"
        await repeat(name, self._invisible_s / 8, prolong_some)

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
        ext = pop.change_fields(self._group, lease.topic, lease.receipt, invisible_ms)
        answer = await self._ask(lease, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        lease.receipt = pop.changed(lease.receipt, answer.ext)
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
            return level_seconds(level) * 1000
        if self._membership.settings.orderly:
            return round(SUSPEND_SECONDS * 1000)
        return RETRY_SECONDS[min(record.reconsume_times, len(RETRY_SECONDS) - 1)] * 1000

    async def _limit(self, lease: Lease) -> int | None:
        """How often a message may come again: as the options say, else as the group's settings say;
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

    def release(self, messages: Sequence[ReceivedMessage] | None = None) -> None:
        """Give back at once what no listener will get, for other members to have it."""
        given = list(self._held) if messages is None else messages
        self._settle(given, lambda lease: self._spawn(self._release(lease)))

    async def _release(self, lease: Lease) -> None:
        with forgiven(log, "%r comes again when its lease ends", lease.message):
            await self._change(lease, 0)

    # Acknowledging.

    def _acknowledge(self, lease: Lease) -> None:
        key = (lease.address, lease.topic)
        self._lines.setdefault(key, []).append(lease)
        if key not in self._acknowledging:
            self._acknowledging.add(key)
            self._spawn(self._acknowledge_all(key))

    async def _acknowledge_all(self, key: tuple[Address, str]) -> None:
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
        together = [each for each in leases if pop.fits_batch(each.receipt)]
        if len(together) > 1 and broker not in self._without_batches:
            body = pop.encode_batch(self._group, topic, [each.receipt for each in together])
            try:
                await self._ask(leases[0], RequestCode.BATCH_ACK_MESSAGE, None, body)
            except LeaseNotFoundError as error:
                log.info("messages of %s come again, although they are done: %s", topic, error)
            except _UnknownRequestError:
                self._without_batches.add(broker)
            if broker not in self._without_batches:
                leases = [each for each in leases if not pop.fits_batch(each.receipt)]
        await at_once(self._acknowledge_one, leases)

    async def _acknowledge_one(self, lease: Lease) -> None:
        ext = pop.receipt_fields(self._group, lease.topic, lease.receipt)
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
        broker, address = lease.receipt.broker, lease.address
        known = route.brokers.get(broker)
        if known is None or address not in dict(known.members).values():
            # A new master knows the leases of the one before.
            address = self._instance.reader(route, broker)
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


class PopQueue(FetchedQueue):
    """One assigned queue, or all of one broker: the source of what was popped from there.

    It is never `dropped` before the end: what came is ours by lease, and is consumed.
    """

    code = RequestCode.POP_MESSAGE

    def __init__(
        self, queue: Queue, member: Membership, owner: "PopFetching", leases: PopLeases
    ) -> None:
        super().__init__(queue, member, owner)
        self.in_hand = 0
        self.wanted = True
        """Whether it is still assigned."""
        self._leases = leases
        settings = member.settings
        listeners = 2 * settings.concurrency * settings.batch_size
        self._count_max = min(settings.prefetch_count, max(IN_HAND_MAX, listeners))
        self._asked: pop.PopRequest | None = None
        self._attempt: str | None = None
        """Of the last request of a consumer in order, until its answer comes."""

    def _has_room(self) -> bool:
        return self.wanted and self.in_hand < self._count_max

    def _request(self) -> dict[str, str]:
        topic, _, queue_id = self.queue
        settings, wanted = self._member.settings, self._filter
        # In a retry topic there is what this group has given back: it wants all of that.
        from_last = settings.start == "last" and not topic.startswith(RETRY_PREFIX)
        # A request that is sent again after its answer was lost gets the same messages.
        if settings.orderly and self._attempt is None:
            self._attempt = f"{self._member.instance.client_id}-{next(_attempts)}"
        self._asked = pop.PopRequest(
            self._member.group,
            topic,
            queue_id,
            min(pop.COUNT_MAX, self._count_max),
            settings.invisible_ms,
            HOLD_MS,
            time.time_ns() // 1_000_000,
            pop.FROM_LAST if from_last else pop.FROM_FIRST,
            "*" if wanted is None else wanted.expression,
            "TAG" if wanted is None else wanted.kind,
            settings.orderly,
            self._attempt,
        )
        return self._asked.fields()

    def _take(self, answer: Command) -> None:
        code, asked = answer.code, self._asked
        self._attempt = None
        assert asked is not None
        assert self._address is not None
        if code == ResponseCode.SUCCESS:
            found = pop.popped(asked, self.queue.broker, answer.ext, answer.body)
            seconds = time.perf_counter() - self._began
            self._member.rates.pulled(asked.topic, seconds, len(found))
            self._hand_over(self._leases.hold(self.queue, self._address, found))
        elif code in _LATER:
            self._fetch_later(BUSY_SECONDS)
        elif code not in _NOTHING:
            raise self._refused(answer)
        self._is_failing = False

    def _hand_over(self, messages: list[ReceivedMessage]) -> None:
        if not self._owner.may_fetch():
            self._leases.release(messages)
            return
        wanted = self._filter
        if wanted is not None and wanted.tags:
            kept = set(map(id, wanted.wanted([each.raw for each in messages])))
            self._leases.done([each for each in messages if id(each.raw) not in kept])
            messages = [each for each in messages if id(each.raw) in kept]
        self.in_hand += len(messages)
        if self._member.settings.orderly:
            # One queue after the other, each in its order.
            for _, some in itertools.groupby(messages, lambda message: message.raw.queue_id):
                self._member.submit(self, list(some))
        elif messages:
            self._member.submit(self, messages)

    def _finished(self, messages: Sequence[ReceivedMessage]) -> None:
        self.in_hand -= len(messages)
        self.fetch()

    # As a `Source`.

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        self._leases.done(messages)
        self._finished(messages)

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException | None) -> None:
        self._leases.failed(messages, error)
        self._finished(messages)

    def expired(self, messages: Sequence[ReceivedMessage]) -> None:
        """A listener has had them for too long: another one may try."""
        self.failed(messages, None)

    def returned(self, messages: Sequence[ReceivedMessage]) -> None:
        """No listener begins with them: one before them failed, or this is the end."""
        seconds = SUSPEND_SECONDS if self._member.settings.orderly else 0.0
        self._leases.put_off(messages, seconds)
        self._finished(messages)

    def info(self) -> PopQueueInfo:
        return PopQueueInfo(
            droped=not self.wanted,
            last_pop_timestamp=self._asked.born_ms if self._asked is not None else 0,
            wait_ack_count=self.in_hand,
        )


class PopFetching(Fetching):
    """A push consumer's fetching side in POP mode. To be made on the consumer's loop."""

    fatal = (RequestRefusedError,)
    _queues: dict[Queue, PopQueue]

    def __init__(self, member: Membership) -> None:
        settings = member.settings
        if isinstance(settings.start, datetime):
            raise ConfigError("with pop a group starts at 'first' or 'last', and not at a time")
        super().__init__(member)
        self._instance = member.instance
        self._leases = PopLeases(member)
        self._keeping: asyncio.Task[None] | None = None
        name = strategy_name(settings.allocation)
        self._strategy = name if name in _BROKERS_STRATEGIES else _BROKERS_STRATEGIES[0]

    async def start(self) -> None:
        """Begin; `RequestRefusedError` if a broker does not know POP."""
        balanced = await self._rebalance()
        self._keeping = self._instance.spawn(self._leases.keep())
        self._spawn(self._keep_balanced(balanced))

    async def commit(self) -> None:
        """Wait until the brokers have heard of everything that is done."""
        await self._leases.flush()

    async def close(self) -> None:
        """Acknowledge what is done, and give the rest back."""
        await self.stop()
        if self._instance.is_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._instance.timeout_ms / 1000):
                    self._leases.release()
                    await self._leases.flush()
        for queue in self._queues.values():
            queue.drop()
        await end_all([self._keeping])

    async def lag(self) -> dict[Queue, int]:
        """How many messages each of the brokers' queues has that nobody of the group was given."""
        mine = {(queue.topic, queue.broker) for queue in self._queues}
        routes = [await self._instance.routes.get(topic) for topic in self._member.filters]
        queues = [
            queue
            for route in routes
            for queue in route.read_queues
            if (queue.topic, queue.broker) in mine
        ]
        return dict(zip(queues, await at_once(self._behind, queues), strict=True))

    async def _behind(self, queue: Queue) -> int:
        end = await offset_at(self._instance, queue, RequestCode.GET_MAX_OFFSET)
        position = await BrokerOffsets(self._instance, self._member.group).read(queue)
        if position is None:
            if self._member.settings.start == "last":
                return 0
            position = await offset_at(self._instance, queue, RequestCode.GET_MIN_OFFSET)
        return max(0, end - position)

    # Which queues.

    async def _share_of(self, topic: str) -> list[Queue]:
        route = await self._instance.routes.get(topic)
        brokers = sorted({queue.broker for queue in route.read_queues})
        answer = await self._assignment(route, random.sample(brokers, len(brokers)))
        if answer is None and (kept := [each for each in self._queues if each.topic == topic]):
            return kept
        mine = [
            queue_of(each.message_queue)._replace(topic=topic)
            for each in (answer.message_queue_assignments if answer is not None else ())
            if each.mode == "POP"
        ]
        return mine or [Queue(topic, broker, pop.ALL_QUEUES) for broker in brokers]

    async def _assignment(self, route: Route, brokers: Iterable[str]) -> AssignmentAnswer | None:
        """What the first broker that can be reached says; None if it cannot say."""
        body = AssignmentRequest(
            client_id=self._instance.client_id,
            consumer_group=self._member.group,
            message_model="CLUSTERING",
            strategy_name=self._strategy,
            topic=route.topic,
        ).encode()
        code = RequestCode.QUERY_ASSIGNMENT
        accept = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR})
        failed: OnelogError | None = None
        for broker in brokers:
            try:
                answer = await self._instance.ask_reader(
                    route, broker, code, None, body, accept=accept
                )
            except OnelogError as error:
                failed = error
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                reason = refusal(self._instance.reader(route, broker), code, answer)
                raise RequestRefusedError(f"broker {broker} is too old for pop: {reason}")
            if answer.code != ResponseCode.SUCCESS or b"messageQueueAssignments" not in bytes(
                answer.body
            ):
                return None
            return AssignmentAnswer.decode(answer.body)
        if failed is not None:
            raise failed
        return None

    async def _take(self, topic: str, wanted: list[Queue]) -> bool:
        for queue in wanted:
            if queue not in self._queues:
                added = PopQueue(queue, self._member, self, self._leases)
                self._queues[queue] = added
                added.fetch()
        return True

    async def _release(self, queues: Collection[Queue]) -> None:
        """Ask for nothing more there. What comes yet is ours by lease, and is consumed."""
        for each in queues:
            self._queues.pop(each).wanted = False
