"""Fetching: which queues are this member's, and the one loop that fetches from each of them.

The queues of a topic are shared out among the members of the group by each member for itself, from
the same sorted lists, so that the shares fit together: every 20 s, and at once when the members or
the queues change. From a queue one request at a time is on its way, without a task or thread that
waits for it; a broker holds a request that finds nothing until something arrives.

    pulling       a queue is one member's: push consumers
    popping       brokers lease messages to members: push consumers with the option `pop`
    prefetching   what is pulled waits until the program asks for it: pull consumers

Invariants: while the members are not known, queues stay where they are. A source learns once what
became of each message that it handed to `Membership.submit`: by `done`, `failed`, `expired` or
`returned`; unless a listener still has the message when the consumer gives up waiting at its end.
Everything here is called on the consumer's loop and does not block.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol

from onelog.client.admin.cluster import MASTER_ID
from onelog.client.connection.address import Address
from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import end_all, refusal
from onelog.client.connection.routes import Route
from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.offsets import (
    BrokerOffsets,
    ConsumerOffsets,
    LocalOffsets,
    local_path,
    offset_at,
)
from onelog.client.consumer.settings import ConsumerSettings
from onelog.client.consumer.topic_filters import TopicFilter
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import (
    FilterSyntaxError,
    OnelogError,
    PeerTimeoutError,
    RequestRefusedError,
    TopicNotFoundError,
    WireError,
)
from onelog.jobs import Job
from onelog.names import RETRY_PREFIX
from onelog.net.peer import Peer
from onelog.net.tasks import is_set
from onelog.wire.remoting.clients import CheckClientRequest, ConsumerData, ConsumerList
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command

REBALANCE_SECONDS = 20.0
UNBALANCED_SECONDS = 1.0
"""The same, while something could not be shared out."""
HOLD_MS = 15_000
"""How long a broker may hold a request that finds nothing."""
TIMEOUT_MS = 30_000
RETRY_SECONDS = 1.0
"""After an error; the brokers may be about to come back."""

log = logging.getLogger(__name__)


class Source(Protocol):
    """What messages were fetched from: one queue, or whatever else is committed together."""

    dropped: bool
    """Whether messages of it that no listener has begun with are better left alone."""

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        """A listener has consumed them."""

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        """A listener raised; a batch fails as a whole. `RetryLater` may say when to retry."""

    def expired(self, messages: Sequence[ReceivedMessage]) -> None:
        """A listener has had them for longer than `consume_timeout`, and has them still."""

    def returned(self, messages: Sequence[ReceivedMessage]) -> None:
        """No listener has begun with them, nor will: the source is dropped, the consumer ends, or
        it consumes in order and a message before them failed."""


@dataclass(frozen=True, slots=True)
class Membership:
    """One client's part in one consumer group: what all ways of fetching need."""

    group: str
    instance: Instance
    settings: ConsumerSettings
    filters: Mapping[str, TopicFilter]
    """What is subscribed to, by topic."""
    submit: Callable[[Source, list[ReceivedMessage]], None]
    """Hand messages of one queue to the listeners. If the consumer is `orderly` they are consumed
    in their order; to submit more before they are settled would undo that."""
    rates: ConsumeRates

    def describe(self, consume_type: str) -> ConsumerData:
        """What heartbeats say about this member."""
        start = self.settings.start
        where = f"{start.upper()}_OFFSET" if isinstance(start, str) else "TIMESTAMP"
        return ConsumerData(
            consume_from_where=f"CONSUME_FROM_{where}",
            consume_type=consume_type,
            group_name=self.group,
            message_model="BROADCASTING" if self.settings.broadcasting else "CLUSTERING",
            subscription_data_set=[each.data() for each in self.filters.values()],
        )

    async def check(self, wanted: TopicFilter) -> None:
        """Have a broker check the condition on a topic; no pull is refused for it.

        `TopicNotFoundError` if there is no such topic.
        """
        route = await self.instance.routes.get(wanted.topic)
        if not wanted.is_sql or not route.brokers:
            return
        body = CheckClientRequest(
            client_id=self.instance.client_id,
            group=self.group,
            namespace=self.instance.namespace or None,
            subscription_data=wanted.data(),
        )
        answer = await self.instance.ask_reader(
            route,
            min(route.brokers),
            RequestCode.CHECK_CLIENT_CONFIG,
            None,
            body.encode(),
            accept=frozenset({ResponseCode.SUBSCRIPTION_PARSE_FAILED}),
        )
        if answer.code != ResponseCode.SUCCESS:
            raise FilterSyntaxError(f"the filter on {wanted.topic}: {answer.remark}")

    def offsets(self, client_id: str | None, *, is_exact: bool = False) -> ConsumerOffsets:
        """Where this member keeps its positions."""
        if self.settings.broadcasting:
            return LocalOffsets(self.settings.offsets_path or local_path(client_id, self.group))
        return BrokerOffsets(self.instance, self.group, is_exact)


async def share_of(member: Membership, topic: str) -> list[Queue]:
    """The queues of a topic that this member is to consume; `OnelogError` if that is not known."""
    route = await member.instance.routes.get(topic)
    if member.settings.broadcasting:
        return list(route.read_queues)
    client_ids = await _client_ids(member, route)
    if member.instance.client_id not in client_ids:
        # The broker has not heard of us yet, or has forgotten us.
        await member.instance.heartbeat()
        client_ids = await _client_ids(member, route)
    if member.instance.client_id not in client_ids:
        raise RequestRefusedError(f"group {member.group} is not known to have this member")
    share = member.settings.allocation(
        member.group, member.instance.client_id, sorted(route.read_queues), sorted(client_ids)
    )
    return list(dict.fromkeys(share))


async def _client_ids(member: Membership, route: Route) -> list[str]:
    """The members of the group, as the first broker of the route knows them that answers."""
    ext = {"consumerGroup": member.group}
    problem: OnelogError | None = None
    for name in sorted(route.brokers):
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        try:
            answer = await member.instance.ask_reader(route, name, code, ext)
        except RequestRefusedError:
            return []
        except OnelogError as error:
            problem = error
        else:
            return ConsumerList.decode(answer.body).consumer_id_list
    raise problem or RequestRefusedError(f"topic {route.topic} has no broker")


async def first_offset(member: Membership, offsets: ConsumerOffsets, queue: Queue) -> int:
    """Where to begin in a queue: where the group was, else where the consumer says.

    A retry topic is read from its beginning: what is in it was given back by this group.
    """
    committed = await offsets.read(queue)
    if committed is not None and committed >= 0:
        return committed
    start = member.settings.start
    if start == "first" or queue.topic.startswith(RETRY_PREFIX):
        return 0
    target = start if isinstance(start, datetime) else RequestCode.GET_MAX_OFFSET
    return await offset_at(member.instance, queue, target)


class Obstacles:
    """The reasons why topics are not shared out: each is a warning once, while it stays the same.

    What fails is tried again every second, and the log need not say so every second.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def report(self, topic: str, error: OnelogError) -> None:
        reason = str(error)
        is_news = self._reasons.get(topic) != reason
        self._reasons[topic] = reason
        # That a topic is missing was said at the start, and a retry topic comes when it is needed.
        is_usual = topic.startswith(RETRY_PREFIX) or isinstance(error, TopicNotFoundError)
        level = logging.WARNING if is_news and not is_usual else logging.DEBUG
        log.log(level, "the queues of %s cannot be shared out now: %s", topic, reason)

    def settle(self, topic: str) -> None:
        if self._reasons.pop(topic, None) is not None:
            log.info("the queues of %s are shared out again", topic)


class Fetching(ABC):
    """The queues of one member, how they come and go, and what all kinds of them share."""

    fatal: ClassVar[tuple[type[OnelogError], ...]] = ()
    """Errors that nobody waits out: the consumer cannot start."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._queues: dict[Queue, Any] = {}
        self._wake = asyncio.Event()
        """Set when the queues are to be shared out anew."""
        self._is_stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        """What goes on until nothing more is to be fetched."""
        self._rechecking: set[str] = set()
        self._obstacles = Obstacles()

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this member consumes now. When it pops, a queue id of -1 stands for all
        queues of a broker."""
        return tuple(sorted(self._queues))

    @abstractmethod
    async def start(self) -> None:
        """Begin, once the first heartbeat went out; share out the queues and fetch."""

    async def stop(self) -> None:
        """Fetch nothing more. Results of what was submitted are still taken."""
        self._is_stopped = True
        await end_all(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._member.instance.spawn(work))

    @abstractmethod
    async def commit(self) -> None:
        """Commit to the brokers now how far this member is."""

    @abstractmethod
    async def close(self) -> None:
        """After `stop`: commit, and give back what the brokers keep for this member."""

    @abstractmethod
    async def lag(self) -> dict[Queue, int]:
        """How many messages of each assigned queue are not consumed yet."""

    def moved(self, queue: Queue, offset: int) -> None:  # noqa: B027
        """The group's position in a queue was set; nothing happens unless the queue is assigned."""

    # Sharing out.

    def rebalance(self) -> None:
        """The members of the group, or a topic's queues, changed: share out anew, soon."""
        self._wake.set()

    async def _keep_balanced(self, balanced: bool) -> None:
        """Share out the queues again and again, and at once when woken; ends by being cancelled."""
        # What a user's strategy raises must not end the sharing out for good.
        job = Job(f"sharing out the queues of group {self._member.group}")
        while True:
            await is_set(self._wake, REBALANCE_SECONDS if balanced else UNBALANCED_SECONDS)
            self._wake.clear()
            balanced = False
            with job:
                balanced = await self._rebalance()

    async def _rebalance(self) -> bool:
        """Share out now; False if that could not be done for everything."""
        balanced = True
        topics = tuple(self._member.filters)
        for topic in topics:
            try:
                wanted = await self._share_of(topic)
                if self._is_stopped:
                    break
                mine = set(wanted)
                await self._release([q for q in self._queues if q.topic == topic and q not in mine])
                balanced &= await self._take(topic, wanted)
                self._obstacles.settle(topic)
            except self.fatal:
                raise
            except OnelogError as error:
                balanced = False
                self._obstacles.report(topic, error)
        await self._release([queue for queue in self._queues if queue.topic not in topics])
        return balanced

    async def _share_of(self, topic: str) -> list[Queue]:
        """The queues of a topic that are this member's from now on."""
        return await share_of(self._member, topic)

    @abstractmethod
    async def _take(self, topic: str, wanted: list[Queue]) -> bool:
        """Fetch from these queues from now on, too; False if not all of them are ours yet."""

    @abstractmethod
    async def _release(self, queues: Collection[Queue]) -> None:
        """These queues are another member's now."""

    # Asked by queues.

    def may_fetch(self) -> bool:
        return not self._is_stopped

    def recheck(self, topic: str) -> None:
        """Something is wrong: the broker may have moved, or have forgotten who we are."""
        if topic not in self._rechecking:
            self._rechecking.add(topic)
            self._member.instance.spawn(self._recheck(topic))

    async def _recheck(self, topic: str) -> None:
        try:
            await self._member.instance.routes.refresh_quietly(topic)
        finally:
            self._rechecking.discard(topic)
        await self._member.instance.heartbeat()

    def is_locked(self, queue: Queue) -> bool:
        """Whether messages of a queue may be consumed in order here."""
        return True

    # For the tools.

    def positions(self, topic: str) -> dict[Queue, int]:
        """How far each assigned queue of a topic is consumed; brokers know it of those that pop."""
        return {}

    def queue_table(self) -> dict[Queue, Any]:
        """How each queue stands: `ProcessQueueInfo`, or `PopQueueInfo` if it is popped."""
        return {queue: self._queues[queue].info() for queue in self.assigned}


class FetchedQueue(ABC):
    """One assigned queue, and the loop that fetches from it: ask, take, ask again.

    Nothing is asked for while a request is on its way, while too much is in hand (`_has_room`), for
    a moment after an error, and when the queue is dropped.
    """

    code: ClassVar[RequestCode]

    def __init__(self, queue: Queue, member: Membership, owner: Fetching) -> None:
        self.queue = queue
        self.dropped = False
        self._member = member
        self._owner = owner
        self._broker_id = MASTER_ID
        self._address: Address | None = None
        self._is_at_master = True
        self._is_fetching = False
        self._is_failing = False
        self._began = 0.0
        self._later: asyncio.TimerHandle | None = None

    @abstractmethod
    def _has_room(self) -> bool:
        """Whether more may be asked for."""

    @abstractmethod
    def _request(self) -> dict[str, str]:
        """The fields of a request for the next messages."""

    @abstractmethod
    def _take(self, answer: Command) -> None:
        """Take what was answered; raises what is wrong with it."""

    @property
    def _filter(self) -> TopicFilter | None:
        return self._member.filters.get(self.queue.topic)

    def fetch(self) -> None:
        """Ask for more, if that is wanted now."""
        if self._is_fetching or self.dropped or self._later is not None:
            return
        if not self._has_room() or not self._owner.may_fetch():
            return
        instance = self._member.instance
        route = instance.routes.known(self.queue.topic)
        if route is None or self.queue.broker not in route.brokers:
            self._owner.recheck(self.queue.topic)
            self._fetch_later(RETRY_SECONDS)
            return
        address = instance.reader(route, self.queue.broker, self._broker_id)
        self._is_at_master = address == route.brokers[self.queue.broker].master
        peer = instance.nodes.open_peer(address)
        self._is_fetching, self._address = True, address
        if peer is None:
            instance.spawn(self._connect(address))
            return
        self._began = time.perf_counter()
        if not self._follows(peer):
            ext = instance.sign(self._request())
            peer.request(self.code, ext, b"", TIMEOUT_MS, self._answered)

    def _follows(self, peer: Peer) -> bool:
        """Whether messages come without a request."""
        return False

    async def _connect(self, address: Address) -> None:
        try:
            await self._member.instance.nodes.peer(address)
        except OnelogError as error:
            self._is_fetching = False
            self._fail(error)
            if self._has_another(address) and self._later is not None:
                self._later.cancel()
                self._fetch_now()
        else:
            self._is_fetching = False
            self.fetch()

    def _has_another(self, address: Address) -> bool:
        """Whether another broker of the set is to be read from meanwhile."""
        route = self._member.instance.routes.known(self.queue.topic)
        if route is None or self.queue.broker not in route.brokers:
            return False
        return self._member.instance.reader(route, self.queue.broker) != address

    def _answered(self, answer: Command | OnelogError) -> None:
        self._is_fetching = False
        if self.dropped or not self._member.instance.is_open:
            self._answered_late(answer)
            return
        if not isinstance(answer, Command):
            if isinstance(answer, PeerTimeoutError) and self._address is not None:
                self._member.instance.nodes.suspect(self._address)
            self._fail(answer)
            return
        try:
            self._take(answer)
        except Exception as error:
            self._fail(error)
            return
        self.fetch()

    def _answered_late(self, answer: Command | OnelogError) -> None:  # noqa: B027
        """The answer to the last request of a queue that was dropped meanwhile."""

    def _refused(self, answer: Command) -> OnelogError:
        assert self._address is not None
        return refusal(self._address, self.code, answer)

    def _fail(self, error: Exception) -> None:
        level = logging.DEBUG if self._is_failing else logging.WARNING
        bug = None if isinstance(error, OnelogError) else error
        log.log(level, "%s cannot be read now: %s", self.queue, error, exc_info=bug)
        self._is_failing = True
        self._broker_id = MASTER_ID
        self._fetch_later(RETRY_SECONDS)
        if not isinstance(error, WireError):
            self._owner.recheck(self.queue.topic)

    def _fetch_later(self, seconds: float) -> None:
        if not self.dropped and self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(seconds, self._fetch_now)

    def _fetch_now(self) -> None:
        self._later = None
        self.fetch()

    def drop(self) -> None:
        """This queue is not ours any more."""
        self.dropped = True
        if self._later is not None:
            self._later.cancel()
            self._later = None
