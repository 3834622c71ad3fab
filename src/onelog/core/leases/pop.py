"""POP: one request for the messages of a topic, whichever queue they are in (facts 2.4, 3.11).

A request names a queue or all of them. Messages that came back are in the topic's retry topic of
the group, which is looked into first by every fifth request, and by the others when there is room
left: neither the old nor the new messages can starve the others. Ordered requests see the topic's
own queues only, because there messages come back to their place.

Where there is nothing, the request may be held: until something arrives in a queue it asked for, in
the retry topic, or comes back.

Invariant: all that one request gets is leased under one stamp, so that one answer can tell it.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from onelog.config import BrokerConfig
from onelog.core.catalog.groups import Groups
from onelog.core.catalog.topics import RETRY_PREFIX, TopicConfig, Topics
from onelog.core.cursors.reading import FetchStatus, QueueReader
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.waiting import ANY_QUEUE, Wait, Waiting
from onelog.core.leases.leases import Leases, Taken, wait_topic
from onelog.core.leases.queue import Fate, check_lease_time
from onelog.core.leases.supply import Terms
from onelog.core.redelivery.leased import lease_retry_topic
from onelog.core.stats import Stats
from onelog.errors import (
    FilterDisabledError,
    GroupPermissionError,
    InvalidQueueError,
    OnelogError,
    StoreFailedError,
    TooManyLeasesError,
    TopicPermissionError,
)

POLLS_MAX = 1024
"""Requests of one group for one queue, or for all of a topic, that are held at a time."""
_RETRY_FIRST_PERCENT = 20
_LOOKED_MAX = 10_000
_ELSEWHERE = (FetchStatus.OFFSET_TOO_SMALL, FetchStatus.OFFSET_OVERFLOW_BADLY)


@dataclass(frozen=True, slots=True)
class PopRequest:
    """What a member of a group asks for; `queue_id` may be ANY_QUEUE."""

    group: str
    topic: str
    queue_id: int
    count_max: int
    terms: Terms

    @property
    def ordered(self) -> bool:
        """Whether the messages of a queue are wanted one hand-over after the other."""
        return self.terms.fate is Fate.ORDERED


class Popped(NamedTuple):
    """What a request got, one part per queue, all of it leased under `stamp`.

    `rest` is what there is beside it, wanted or not. `more` says that nothing was found, but not
    all was looked at. `cold` is what must be read from the disk before there can be an answer;
    `later` says that there was no time to look: ask again when `FilterTime.later` calls.
    """

    parts: Sequence[Taken]
    stamp: int
    rest: int
    more: bool = False
    cold: Sequence[tuple[int, int]] = ()
    later: bool = False


class Peeked(NamedTuple):
    """What a request would get, and how much there is in all; `cold` as in `Popped`."""

    records: Sequence[memoryview]
    rest: int
    cold: Sequence[tuple[int, int]] = ()


class Pop:
    """Leases messages to members of groups."""

    def __init__(
        self,
        leases: Leases,
        topics: Topics,
        groups: Groups,
        reader: QueueReader,
        waiting: Waiting,
        stats: Stats,
        random: Random,
        settings: Callable[[], BrokerConfig],
        when_durable: Callable[[WhenSafe], None],
    ) -> None:
        self._leases = leases
        self._topics = topics
        self._groups = groups
        self._reader = reader
        self._waiting = waiting
        self._stats = stats
        self._random = random
        self._settings = settings
        self._when_durable = when_durable
        self._looked: dict[tuple[str, str, int, str | None], tuple[int, int]] = {}
        """Where nothing was found for whom, and when that was."""

    def admit(self, group: str, topic: str, queue_id: int) -> TopicConfig:
        """The topic's settings, if the group may take messages of that queue, or of all."""
        if not self._groups.require(group).consume_enable:
            raise GroupPermissionError(f"subscription group no permission, {group}")
        config = self._topics.require(topic)
        if not config.readable:
            raise TopicPermissionError(f"the topic[{topic}] peeking message is forbidden")
        if not ANY_QUEUE <= queue_id < config.read_queues:
            raise InvalidQueueError(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queues}]"
            )
        return config

    def when_safe(self, callback: WhenSafe) -> None:
        """Call back once what was acknowledged so far is recorded, as safely as a message.

        What is handed out need not wait for that: were its lease forgotten, it would come again.
        """

        def recorded(error: OnelogError | None) -> None:
            if error is None:
                self._when_durable(callback)
            else:
                callback(error)

        self._leases.when_recorded(recorded)

    def pop(self, request: PopRequest, *, cold_ok: bool = False) -> Popped:
        """Lease messages; see `Leases.when_recorded` before anybody is told of them."""
        group, terms, leases = request.group, request.terms, self._leases
        check_lease_time(terms.invisible_ms)
        settings = self._settings()
        if terms.subscription is not None and (
            terms.subscription.predicate is not None and not settings.property_filter
        ):
            raise FilterDisabledError(
                "The broker does not support consumer to filter message by SQL92"
            )
        stamp = leases.stamp()
        parts: list[Taken] = []
        cold: list[tuple[int, int]] = []
        trouble: OnelogError | None = None
        more = later = False
        count, room, rest = request.count_max, settings.pull_bytes_max, 0
        for topic, queue_id in self._places(request):
            available = leases.available(group, topic, queue_id, terms)
            if available and count > 0 and room > 0:
                try:
                    part = leases.take(
                        group, topic, queue_id, count, terms, stamp,
                        bytes_max=room, cold_ok=cold_ok,
                    )  # fmt: skip
                except (TooManyLeasesError, StoreFailedError) as error:
                    trouble = error
                    continue
                if part.offsets:
                    parts.append(part)
                    size = sum(map(len, part.records))
                    count -= len(part.offsets)
                    room -= size
                    self._stats.got(group, topic, len(part.offsets), size)
                elif part.cold:
                    cold += part.cold
                elif part.later:
                    later, count = True, 0
                elif leases.unread(group, topic, queue_id):
                    more = True
                available = leases.available(group, topic, queue_id, terms)
            rest += available
        if parts:
            return Popped(parts, stamp, rest)
        if not cold and trouble is not None:
            raise trouble
        return Popped((), stamp, rest, more, cold, later)

    def _places(self, request: PopRequest) -> list[tuple[str, int]]:
        """The queues to look into, in this order."""
        config = self.admit(request.group, request.topic, request.queue_id)
        if request.queue_id != ANY_QUEUE:
            places = [(request.topic, request.queue_id)]
        else:
            first = self._random.randrange(max(1, config.read_queues))
            queues = range(config.read_queues)
            places = [(request.topic, queue_id) for queue_id in (*queues[first:], *queues[:first])]
        retry = self._retry_topic(request)
        if retry is None:
            return places
        again = [(retry.name, queue_id) for queue_id in range(retry.read_queues)]
        if self._random.randrange(100) < _RETRY_FIRST_PERCENT:
            return again + places
        return places + again

    def _retry_topic(self, request: PopRequest) -> TopicConfig | None:
        if request.ordered or request.topic.startswith(RETRY_PREFIX):
            return None
        return self._topics.get(lease_retry_topic(request.group, request.topic))

    # -- waiting -------------------------------------------------------------------------------

    def has_messages(self, request: PopRequest) -> bool:
        """Whether there is anything to be had, wanted or not."""
        return any(
            self._leases.available(request.group, topic, queue_id, request.terms)
            for topic, queue_id in self._places(request)
        )

    def hold(
        self,
        request: PopRequest,
        timeout_ms: int,
        on_end: Callable[[Wait, bool], None],
        owner: Hashable,
    ) -> Wait | None:
        """Wait until there may be something for the request; None if too many wait already."""
        if self.held(request.group, request.topic, request.queue_id) >= POLLS_MAX:
            return None
        keys = [
            (request.topic, request.queue_id),
            (wait_topic(request.group, request.topic), request.queue_id),
        ]
        if not request.ordered:
            keys.append((lease_retry_topic(request.group, request.topic), ANY_QUEUE))
        return self._waiting.wait(keys, timeout_ms, on_end, owner, lambda: self._may_go_on(request))

    def _may_go_on(self, request: PopRequest) -> bool:
        """Whether to look again. Of a thousand members that wait, most learn it from the first."""
        like = (request.group, request.topic, request.queue_id, request.terms.attempt_id)
        moment = self._leases.moment
        if self._looked.get(like) == moment:
            return False
        try:
            found = self.has_messages(request)
        except OnelogError:
            return True  # The topic is gone, say: the request will hear of it.
        if not found:
            if len(self._looked) >= _LOOKED_MAX:
                self._looked.clear()
            self._looked[like] = moment
        return found

    def held(self, group: str, topic: str, queue_id: int) -> int:
        """How many requests of a group for a queue, or for all queues, are held."""
        return len(self._waiting.keys.get((wait_topic(group, topic), queue_id), ()))

    # -- looking -------------------------------------------------------------------------------

    def peek(self, request: PopRequest, *, cold_ok: bool = False) -> Peeked:
        """The unread messages that the group would be given next, without giving them."""
        records: list[memoryview] = []
        count, room, rest = request.count_max, self._settings().pull_bytes_max, 0
        for topic, queue_id in self._places(request):
            rest += self._leases.available(request.group, topic, queue_id, request.terms)
            if count > 0 and room > 0:
                offset = self._leases.position(request.group, topic, queue_id)
                result = self._reader.read(topic, queue_id, offset, count, room, cold_ok=cold_ok)
                if result.status in _ELSEWHERE:
                    offset = result.next_offset
                    result = self._reader.read(
                        topic, queue_id, offset, count, room, cold_ok=cold_ok
                    )
                if result.status is FetchStatus.COLD and not records:
                    return Peeked([], 0, result.ranges)
                records += result.slices
                count -= result.messages
                room -= result.size
        return Peeked(records, rest)
