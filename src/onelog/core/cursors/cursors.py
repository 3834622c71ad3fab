"""Reading by offset: fetches, those who follow a queue, and the offsets that groups have.

Each method says who asks, and asks whether they may.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onelog.core.access import Principal
from onelog.core.cursors.fetch import Cursor, Limits, OnFetched, ViewReader
from onelog.core.cursors.unpacking import ColdError
from onelog.core.durable.tables import DataVersion
from onelog.core.durable.waiting import OnEnd, Wait
from onelog.core.membership.members import PULLED_MS
from onelog.errors import (
    GroupNotFoundError,
    InvalidGroupError,
    InvalidQueueError,
    OffsetOutOfRangeError,
)
from onelog.message import Message
from onelog.names import check_name
from onelog.record.forms.neutral import Neutral
from onelog.store.outcomes import Aborted
from onelog.store.reader import Fetched

if TYPE_CHECKING:
    from onelog.core.assembly import Assembly

log = logging.getLogger(__name__)

OFFSET_MAX = (1 << 63) - 1


class Cursors:
    """`Broker.cursors`."""

    def __init__(self, core: "Assembly") -> None:
        self._access = core.access
        self._naming = core.naming
        self._durability = core.durability
        self._waiting = core.waiting
        self._fetches = core.fetches
        self._reader = core.reader
        self._cold_reads = core.cold_reads
        self._batch_producers = core.batch_producers
        self._compaction = core.compaction
        self._groups = core.groups
        self._topics = core.topics
        self._members = core.members
        self._offsets = core.offsets
        self._versions = core.versions
        self._store = core.store
        self._stats = core.stats
        self.on_move = core.offsets.on_move
        """Called with a group, a topic, and where somebody has put the group in its queues."""
        self.on_commit = core.offsets.on_change
        """Called with a group, a topic, and where the group is now, when that was recorded."""

    # -- fetching ---------------------------------------------------------------------------------

    def fetch(
        self,
        principal: Principal,
        cursors: Sequence[Cursor],
        limits: Limits,
        wait_ms: int,
        on_fetched: OnFetched,
        owner: Hashable = None,
        token: Any = None,
    ) -> None:
        """The next messages at some cursors, now or when there are enough; see `Fetches.fetch`."""
        if not self._access.is_open:
            for cursor in cursors:
                self._access.check_consumer(principal, cursor.group, cursor.topic, self._naming)
        if owner is not None and cursors:
            group, topic, queue_id = cursors[0][:3]
            if group is not None and self._members.pulled(group, topic, queue_id, owner):
                wait_ms = min(wait_ms, PULLED_MS)
        self._fetches.fetch(cursors, limits, wait_ms, on_fetched, owner, token)

    def suggested_broker(
        self, principal: Principal, group: str, fetched: Fetched, far_bytes: int
    ) -> int:
        """The id of that broker of the set which a group should read from next."""
        if not self._access.is_open:
            self._access.check(principal, "consume", ("group", group))
        return self._fetches.suggested_broker(group, fetched, far_bytes)

    def messages_in(self, record: Message, begin: int = 0) -> Iterator[tuple[int, Neutral]]:
        """The messages in a record that was fetched as stored; see `Unpacking.messages`."""
        return self._reader.unpacking.messages(record, begin)

    @property
    def messages_passed_over(self) -> int:
        """How many messages readers of other protocols did not get, because they are none."""
        return self._reader.unpacking.passed_over

    def prepare(self, cold: ColdError, then: Callable[[], None]) -> None:
        """Have a worker do what a `ColdError` says, and go on."""
        self._cold_reads.prepare(self._reader, cold.ranges, then)

    def in_line(self, find: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have a worker look into what takes memory unpacked; see `Warming.in_line`."""
        self._cold_reads.in_line(find, then)

    def settled(
        self, principal: Principal, topic: str, queue_id: int, begin: int, end: int
    ) -> tuple[int, list[Aborted]]:
        """Up to where transactions in a queue have ended, and which of them failed in a stretch."""
        if not self._access.is_open:
            self._access.check(principal, "consume", ("topic", topic))
        producers = self._batch_producers
        stable = producers.stable_end(topic, queue_id, self._store.max_offset(topic, queue_id))
        left = self._compaction.compacted.get((topic, queue_id))
        if left is not None:
            begin = max(begin, left.end)  # What was compacted is of no transaction.
        return stable, producers.aborted_between(topic, queue_id, begin, end)

    def stable_ends(self, principal: Principal, topic: str) -> dict[int, int]:
        """Of each queue with a transaction that has not ended, where the first one begins."""
        if not self._access.is_open:
            self._access.check(principal, "describe", ("topic", topic))
        found = {}
        for queue_id in range(self._topics.require(topic).queues):
            end = int(self._store.max_offset(topic, queue_id))
            stable = self._batch_producers.stable_end(topic, queue_id, end)
            if stable < end:
                found[queue_id] = stable
        return found

    def may_follow(
        self, principal: Principal, group: str, topic: str, queue_id: int, offset: int
    ) -> bool:
        """Whether the next message to come to a queue, at `offset`, may be handed to the group."""
        self._access.check_consumer(principal, group, topic, self._naming)
        config, settings = self._groups.get(group), self._topics.get(topic)
        return (
            config is not None
            and config.consume_enable
            and settings is not None
            and settings.readable
            and 0 <= queue_id < settings.read_queues
            and not self._offsets.is_reset(group, topic, queue_id)
            and self._store.max_offset(topic, queue_id) == offset
        )

    def followed(self, group: str, topic: str, queue_id: int, next_offset: int, size: int) -> None:
        """Count a message that somebody who follows a queue was given."""
        self._stats.got(group, topic, 1, size)
        self._offsets.pulled(group, topic, queue_id, next_offset)

    def watch(
        self,
        principal: Principal,
        topic: str,
        queue_id: int,
        wait_ms: int,
        woken: OnEnd,
        ready: Callable[[], bool],
    ) -> Wait | None:
        """Wait until something has come to a queue and `ready` agrees, or the time is up.

        The answer is for `unwatch`; None if too many wait already.
        """
        if not self._access.is_open:
            self._access.check(principal, "consume", ("topic", topic))
        return self._waiting.wait(((topic, queue_id),), wait_ms, woken, ready=ready)

    def unwatch(self, wait: Wait) -> None:
        self._waiting.cancel(wait)

    def serve_view(self, topic: str, read: ViewReader) -> None:
        """Have fetches from a topic that nobody has answered by its gateway."""
        self._fetches.views[topic] = read

    def notify_arrival(self, topic: str, queue_id: int) -> None:
        """There is something new in a view."""
        self._waiting.arrived(topic, queue_id)

    # -- offsets ----------------------------------------------------------------------------------

    def commit(
        self, principal: Principal, group: str, topic: str, queue_id: int, offset: int
    ) -> None:
        """A group has consumed everything below `offset`. It must exist; a commit makes none."""
        self._durability.require_served()
        self._access.check_consumer(principal, group, topic, self._naming)
        if self._groups.get(group) is None:
            raise GroupNotFoundError(f"Group {group} not exist!")
        settings = self._topics.require(topic)
        if not 0 <= queue_id < settings.queues:
            raise InvalidQueueError(f"queueId[{queue_id}] is illegal, topic:[{topic}]")
        if offset < 0:
            raise OffsetOutOfRangeError(f"offset {offset} cannot be committed")
        self._offsets.commit(group, topic, queue_id, offset)

    def query(
        self,
        principal: Principal,
        group: str,
        topic: str,
        queue_id: int,
        *,
        zero_if_missing: bool = True,
    ) -> int | None:
        """Where a starting consumer goes on; None if it has to decide that itself."""
        self._access.check_consumer(principal, group, topic, self._naming)
        self._durability.require_current()
        return self._offsets.query(group, topic, queue_id, zero_if_missing=zero_if_missing)

    def positions(
        self, principal: Principal
    ) -> tuple[DataVersion, dict[tuple[str, str], dict[int, int]]]:
        """The positions of all groups, by group and topic, and the version of the whole set."""
        self._access.check(principal, "describe", ("broker", "names"))
        return self._versions[self._offsets.name], self._offsets.all()

    def offsets_at(
        self, principal: Principal, topic: str, queues: Iterable[int], time_ms: int
    ) -> dict[int, int]:
        """Where in each queue a time is; -1 is the end."""
        self._access.check(principal, "describe", ("topic", topic))
        return self._offsets_at(topic, queues, time_ms)

    def _offsets_at(self, topic: str, queues: Iterable[int], time_ms: int) -> dict[int, int]:
        store = self._store
        if time_ms < 0:
            return {each: store.max_offset(topic, each) for each in queues}
        return {each: store.offset_by_time(topic, each, time_ms) for each in queues}

    def reset(
        self,
        principal: Principal,
        group: str,
        topic: str,
        time_ms: int,
        *,
        queue_id: int = -1,
        offset: int | None = None,
        starts: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """Move a group to a time (-1: to the end), or one queue of it to an offset.

        The answer is the new position of each queue. Live members go there with their next pull.
        `starts` is what `offsets_at` found, for those who had a worker look.
        """
        self._access.check(principal, "alter", ("group", group))
        self._access.check_group_topic(principal, group, topic, self._naming)
        config = self._topics.require(topic)
        if self._groups.get(group) is None:
            raise GroupNotFoundError(f"group {group} does not exist")
        if queue_id >= config.queues:
            raise InvalidQueueError(f"queueId[{queue_id}] is illegal, {config}")
        if queue_id < 0 or offset is None or offset == -1:
            queues = range(config.read_queues) if queue_id < 0 else (queue_id,)
            moved = dict(starts or self._offsets_at(topic, queues, time_ms))
        else:
            start = self._store.min_offset(topic, queue_id)
            end = self._store.max_offset(topic, queue_id)
            if not start <= offset <= end + 1:
                raise OffsetOutOfRangeError(
                    f"target offset {offset} not in consume queue range [{start}-{end}]"
                )
            moved = {queue_id: offset}
        if not moved:
            raise InvalidQueueError(f"topic {topic} has no queues to reset")
        self._offsets.reset(group, topic, moved)
        log.info("group %s was moved in topic %s to %s", group, topic, moved)
        return moved

    def move_back(
        self, principal: Principal, group: str, topic: str, starts: Mapping[int, int]
    ) -> dict[int, int]:
        """Move queues to these places, except those that are not there yet; where each is then."""
        self._access.check(principal, "alter", ("group", group))
        if self._groups.get(group) is None:
            raise GroupNotFoundError(f"Group {group} does not exist")
        positions: dict[int, int] = {}
        for each, wanted in starts.items():
            current = self._offsets.get(group, topic, each)
            if current is not None and current <= wanted:
                positions[each] = current
            else:
                positions |= self.reset(principal, group, topic, 0, queue_id=each, offset=wanted)
        return positions

    def clone(
        self,
        principal: Principal,
        source: str,
        target: str,
        topic: str = "",
        *,
        offline: bool = False,
    ) -> list[str]:
        """Put a group where another is, in one topic or in all of its topics; which they were."""
        self._access.check(principal, "alter", ("group", target))
        cloned = self.topics_to_clone(principal, source, target, topic, offline=offline)
        for each in cloned:
            self._offsets.clone(source, target, each)
        return cloned

    def topics_to_clone(
        self,
        principal: Principal,
        source: str,
        target: str,
        topic: str = "",
        *,
        offline: bool = False,
    ) -> list[str]:
        """In which topics `clone_offsets` would put a group where another is."""
        self._access.check(principal, "describe", ("group", source))
        check_name(target, "group", InvalidGroupError)
        topics = [topic] if topic else self._offsets.topics_of(source)
        live = self._members.group(source)
        if live is not None and live.subscriptions and not offline:
            topics = [each for each in topics if each in live.subscriptions]
        there = [each for each in topics if self._topics.get(each) is not None]
        return self._access.known(principal, "topic", there)

    def least_offsets(
        self,
        principal: Principal,
        topic: str,
        compare_group: str = "",
        without_groups: Iterable[str] = (),
    ) -> dict[int, int]:
        """Per queue, the position of the group that is furthest behind.

        A queue in which `compare_group` is behind that one gets the largest offset there is.
        """
        self._access.check(principal, "describe", ("topic", topic))
        excluded = set(without_groups)
        least: dict[int, int] = {}
        for group in self._offsets.groups_of(topic):
            if group not in excluded:
                for queue_id, offset in self._offsets.of(group, topic).items():
                    if offset >= self._store.min_offset(topic, queue_id):
                        least[queue_id] = min(offset, least.get(queue_id, OFFSET_MAX))
        for queue_id, offset in self._offsets.of(compare_group, topic).items():
            if least.get(queue_id, OFFSET_MAX) > offset:
                least[queue_id] = OFFSET_MAX
        return least

    def missed(
        self, principal: Principal, deleted: Mapping[tuple[str, int], int]
    ) -> dict[str, int]:
        """Of messages that retention just deleted, how many each group had not read yet."""
        self._access.check(principal, "describe", ("broker", "names"))
        lost: dict[str, int] = {}
        for (topic, queue_id), count in deleted.items():
            start = self._store.min_offset(topic, queue_id)
            for group in self._offsets.groups_of(topic):
                position = self._offsets.get(group, topic, queue_id)
                if position is not None and position < start:
                    missed = min(count, start - position)
                    lost[group] = lost.get(group, 0) + missed
        return lost
