"""Compaction: of a queue whose topic wants that, the last message of each key stays, for ever.

    table     "compacted": {topic@queue id: `CompactedSegment`, as a list}

A job looks for queues of which enough is new, and goes over one at a time (`runs`): a worker
reads, the loop writes, a little at a time. In the end one record in the table says that the new
remains count; what the log had before is not looked at any more, and goes with its segments. When
segments are about to go that hold remains, or messages of a compacted queue that no pass has come
to, a pass carries them over first; until it has, they are kept.

Offsets do not change, and nothing young is touched: not what came in the last minute (or
`segment.ms`, or `min.compaction.lag.ms`), not the newest message, nothing from the first open
transaction on. If a topic is not compacted any more its remains stay until all of them are as old
as messages may be.

Invariant: the last message of each key of a compacted queue that is decided is in what the queue's
readers see, whatever the process, the disk or retention does; a tombstone, for its time.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from onelog.core.catalog.topics import COMPACT, DELETE, TopicConfig, Topics
from onelog.core.compaction.compacted import Cleaned, CompactedSegment, QueueKey
from onelog.core.cursors.forms import MarkedTopics
from onelog.core.cursors.starts import QueueStarts
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change, in_parts
from onelog.core.transactions.producers import BatchProducers
from onelog.errors import StoreFullError
from onelog.jobs import Job
from onelog.message import QUEUE_ID_MAX, NewMessage
from onelog.names import COMPACTED_TOPIC, join_key, split_key
from onelog.store.consumequeue import ConsumeQueue

if TYPE_CHECKING:
    from onelog.core.compaction.run import CompactionPlan, CompactionRun


ACTIVE_MS = 60_000
"""What came in this time is the newest stretch of a queue, if `segment.ms` does not say less."""
_FOR_EVER = (1 << 63) - 1


class CompactionPolicy(NamedTuple):
    """How the queues of one topic are compacted: its settings, with Kafka's names and defaults."""

    deletes: bool
    """Whether messages go at their age, too."""
    lag_ms: int
    """Younger messages are left alone."""
    lag_max_ms: int
    """Older ones are not."""
    tombstone_ms: int
    """How long a tombstone stays, after what it deletes is gone."""
    dirty_ratio: float
    """The part of a queue that is new when it is worth to go over it."""
    retention_ms: int


def policy_of(config: TopicConfig, retention_ms: int) -> CompactionPolicy | None:
    """The topic's policy, where that is the retention time of others; None: it is not compacted."""
    given = config.attributes
    if COMPACT not in config.cleanup:
        return None
    return CompactionPolicy(
        DELETE in config.cleanup,
        max(
            int(given.get("min.compaction.lag.ms", 0)),
            min(int(given.get("segment.ms", ACTIVE_MS)), ACTIVE_MS),
        ),
        int(given.get("max.compaction.lag.ms", _FOR_EVER)),
        int(given.get("delete.retention.ms", 86_400_000)),
        float(given.get("min.cleanable.dirty.ratio", 0.5)),
        config.retention_ms or retention_ms,
    )


log = logging.getLogger(__name__)

KEYS_MAX = 500_000
"""Of which a pass knows the last message: some 60 MB while it looks for them."""
_QUEUES_AT_ONCE = 500
_PAUSE_MS = 5


class Compaction:
    """Keeps compacted queues compact."""

    name = "compacted"

    def __init__(
        self,
        storage: Storage,
        topics: Topics,
        marked: MarkedTopics,
        starts: QueueStarts,
        producers: BatchProducers,
    ) -> None:
        self._store, self._writer, self._tables = storage.store, storage.writer, storage.tables
        self._clock, self._schedule = storage.runtime.clock, storage.runtime.schedule
        self._cold_reads, self._topics, self._marked = storage.cold_reads, topics, marked
        self._starts, self._producers = starts, producers
        self.keys_max = KEYS_MAX
        self.compacted: dict[QueueKey, CompactedSegment] = {}
        """What is left of queues; those who read look here."""
        self._policies: dict[str, CompactionPolicy] = {}
        self._to_look_at: list[QueueKey] = []
        self._urgent: dict[QueueKey, int] = {}
        """Queues with something before a log offset that is about to go."""
        self._needed: dict[QueueKey, int] = {}
        """What `_needed_from` has found out."""
        self._is_busy = self._is_closed = False
        self._job = Job("compacting queues")
        topics.on_change.append(self._topic_changed)

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        topic, queue_id = split_key(key)
        queue_key = topic, int(queue_id)
        self._needed.pop(queue_key, None)
        if value is None:
            self.compacted.pop(queue_key, None)
            self._store.carried.pop(queue_key, None)
            return
        *numbers, cleaned = value
        found = CompactedSegment._make([*numbers, tuple(Cleaned(*each) for each in cleaned)])
        self.compacted[queue_key] = found
        start = max(found.start, self._starts.of(*queue_key))
        self._store.carried[queue_key] = (start, found.end)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Everything that is left."""
        for part in in_parts(self.compacted):
            yield {_key(queue_key): list(each) for queue_key, each in part}

    def open(self) -> None:
        """See which topics are compacted, and that what is left of their queues is there."""
        self.learn_topics()
        for queue_key, each in list(self.compacted.items()):
            has_all = each.last <= self._store.max_offset(COMPACTED_TOPIC, each.queue_id)
            if not self._topics.is_there(queue_key[0]) or not has_all:
                log.warning(
                    "what was left of queue %d of topic %s is gone", queue_key[1], queue_key[0]
                )
                self._forget(queue_key)
                continue
            queue = self._store.queue_table.get(*queue_key)
            if queue.end < each.end:
                # Its files were made anew, from a log that has nothing of it any more.
                queue.pad_to(each.end)

    def learn_topics(self) -> None:
        """See which topics are compacted."""
        for config in self._topics.all():
            self._topic_changed(config.name, config)

    def close(self) -> None:
        """A pass that is under way ends here, and counts for nothing."""
        self._is_closed = True

    def _forget(self, *places: QueueKey) -> None:
        self._tables.write([(self.name, _key(queue_key), None) for queue_key in places])

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        policy = None
        if config is not None:
            policy = policy_of(config, self._store.config.retention_ms)
        else:
            self._forget(*[queue_key for queue_key in self.compacted if queue_key[0] == name])
        for queue_key in [each for each in self._needed if each[0] == name]:
            del self._needed[queue_key]
        if policy is None:
            self._policies.pop(name, None)
        else:
            self._policies[name] = policy

    # -- which queues --------------------------------------------------------------------------

    def _queues(self) -> list[QueueKey]:
        by_topic = self._store.queue_table.by_topic
        compacted = [(topic, each) for topic in self._policies for each in by_topic.get(topic, ())]
        return [
            *compacted,
            *(queue_key for queue_key in self.compacted if queue_key[0] not in self._policies),
        ]

    def check(self) -> bool:
        """Begin to go over a queue that is due, if none is; True: there is more to look at."""
        if self._is_busy:
            return False
        if self._urgent:
            self._begin(*self._urgent.popitem())
            return False
        if not self._to_look_at:
            self._to_look_at = self._queues()
        for _ in range(min(_QUEUES_AT_ONCE, len(self._to_look_at))):
            queue_key = self._to_look_at.pop()
            if self._is_due(queue_key):
                self._begin(queue_key, 0)
                return False
        return bool(self._to_look_at)

    def _is_due(self, queue_key: QueueKey) -> bool:
        """Whether to look closer: what must be read for that, a worker reads."""
        policy, before = self._policies.get(queue_key[0]), self.compacted.get(queue_key)
        queue = self._store.queue_table.find(*queue_key)
        now_ms = self._clock.now_ms()
        if queue is None:
            return False
        if policy is None:
            self._retire(queue_key, now_ms)
            return False
        if before is not None:
            if any(each.time_ms + policy.tombstone_ms <= now_ms for each in before.cleaned):
                return True
            old_ms = now_ms - policy.retention_ms
            is_late = before.made_ms <= now_ms - policy.retention_ms // 10
            if policy.deletes and before.messages and before.oldest_ms < old_ms and is_late:
                return True
        if _is_dirty(policy, before, queue, queue.end - 1):
            return True
        clean = queue.start if before is None else before.clean
        return policy.lag_max_ms < now_ms and clean < queue.end - 1

    def _retire(self, queue_key: QueueKey, now_ms: int) -> None:
        """Forget what is left of a queue that is not compacted any more, when it is all old."""
        before, config = self.compacted.get(queue_key), self._topics.get(queue_key[0])
        if before is None or config is None:
            return
        retention_ms = config.retention_ms or self._store.config.retention_ms
        if before.made_ms + retention_ms <= now_ms:
            start = min(before.end, self._store.max_offset(*queue_key))
            changes: list[Change] = [(self.name, _key(queue_key), None)]
            if start > self._starts.of(*queue_key):
                changes.append((self._starts.name, _key(queue_key), start))
            self._tables.write(changes)

    # -- going over one ------------------------------------------------------------------------

    def _begin(self, queue_key: QueueKey, reach: int) -> None:
        """Go over a queue; all of it that is before a log offset in any case."""
        policy, before = self._policies.get(queue_key[0]), self.compacted.get(queue_key)
        queue = self._store.queue_table.find(*queue_key)
        if queue is None or (policy is None and before is None):
            return
        self._is_busy = True
        stable = self._producers.stable_end(*queue_key, queue.end)
        plan = partial(self._plan, queue_key, policy, before, queue, stable, reach)
        self._ask(plan, partial(self._planned, queue_key, queue))

    def _ask(self, ask: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have a worker do something, and go on; if that fails, another time."""

        def tried() -> Any:
            try:
                return ask()
            except Exception as error:
                return error

        def go_on(found: Any) -> None:
            if self._is_closed:
                return
            with self._job:
                try:
                    if isinstance(found, Exception):
                        raise found
                    then(found)
                except BaseException:
                    self._is_busy = False
                    raise

        self._cold_reads.find(tried, go_on)

    def _plan(
        self,
        queue_key: QueueKey,
        policy: CompactionPolicy | None,
        before: CompactedSegment | None,
        queue: ConsumeQueue,
        stable: int,
        reach: int,
    ) -> "CompactionPlan | None":
        """What there is to do, if there is anything; for a worker."""
        from onelog.core.compaction.run import CompactionPlan  # What reads batches, few need.

        store, now_ms = self._store, self._clock.now_ms()
        start = int(store.min_offset(*queue_key))
        carried = start if before is None else max(start, before.end)
        clean = start if before is None else max(start, before.clean)
        dirty_end, carry_end, tombstones_before, expired_ms = clean, carried, 0, 0
        is_wanted = reach > 0 and self._is_left_before(before, reach)
        if reach and policy is not None:
            gone = queue.first_not_before(lambda entry: entry[0] < reach)
            carry_end = max(carried, min(stable, gone))
            is_wanted |= carry_end > carried
        young_ms = now_ms
        if policy is not None:
            young_ms = now_ms - policy.lag_ms
            old_end = int(store.offset_by_time(*queue_key, young_ms + 1))
            newest = queue.end if reach else _newest_batch(queue)
            dirty_end = max(carried, min(stable, old_end, newest))
            if before is not None and self._is_young(before, clean, young_ms):
                dirty_end = clean
            due_ms = now_ms - policy.tombstone_ms
            known = () if before is None else before.cleaned
            tombstones_before = max((e.end for e in known if e.time_ms <= due_ms), default=0)
            if policy.deletes:
                expired_ms = now_ms - policy.retention_ms
                is_old = before is not None and before.oldest_ms < expired_ms
                is_wanted |= is_old and before is not None and before.messages > 0
            is_wanted |= tombstones_before > 0 or _is_dirty(policy, before, queue, dirty_end)
            if not is_wanted and clean < dirty_end:
                first_ms = store.store_time(*queue_key, max(clean, queue.start))
                is_wanted = first_ms is not None and first_ms < now_ms - policy.lag_max_ms
        if not is_wanted:
            return None
        aborted = self._producers.aborted_between(*queue_key, carried, max(dirty_end, carry_end))
        return CompactionPlan(
            queue_key,
            before,
            start,
            clean,
            dirty_end,
            young_ms,
            carry_end,
            policy is not None,
            tombstones_before,
            0 if policy is None else policy.tombstone_ms,
            expired_ms,
            aborted,
        )

    def _is_young(self, before: CompactedSegment, clean: int, young_ms: int) -> bool:
        """Whether what was carried over before it could be compacted is still too young."""
        number = before.number_at(self._store, clean)
        found = self._store.entry_at(COMPACTED_TOPIC, before.queue_id, number)
        if number >= before.last or found is None:
            return False
        return self._store.message_at(found[0]).born_ms > young_ms

    def _planned(
        self, queue_key: QueueKey, queue: ConsumeQueue, plan: "CompactionPlan | None"
    ) -> None:
        if plan is None:
            self._over()
            return
        from onelog.core.compaction.run import CompactionRun

        going = CompactionRun(self._store, plan, self._queue_for(queue_key), self.keys_max)
        first = int(self._store.next_offset(COMPACTED_TOPIC, going.queue_id))
        self._ask(going.step, partial(self._stepped, going, queue, first))

    def _queue_for(self, queue_key: QueueKey) -> int:
        """Where the remains of a queue go: where they are, or to a queue that nobody has."""
        if queue_key in self.compacted:
            return self.compacted[queue_key].queue_id
        taken = {each.queue_id for each in self.compacted.values()}
        if len(taken) > QUEUE_ID_MAX:
            raise StoreFullError(f"{len(taken)} queues are compacted; more cannot be")
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _stepped(
        self, going: "CompactionRun", queue: ConsumeQueue, first: int, made: list[NewMessage]
    ) -> None:
        """Write what a step has made, and see to the next."""
        queue_key, before = going.plan.queue_key, going.plan.before
        is_same = self._store.queue_table.find(*queue_key) is queue
        if not is_same or self.compacted.get(queue_key) is not before:
            self._over()  # The topic was deleted.
            return
        if made:
            self._writer.write_now([], made)
        if not going.is_done:
            step = partial(self._stepped, going, queue, first)
            self._schedule(_PAUSE_MS, lambda: self._ask(going.step, step))
            return
        last = int(self._store.next_offset(COMPACTED_TOPIC, going.queue_id))
        if last > self._store.max_offset(COMPACTED_TOPIC, going.queue_id):
            # Replicas have not confirmed it: nobody could read it yet.
            again = partial(self._stepped, going, queue, first)
            self._schedule(_PAUSE_MS, lambda: self._ask(list, again))
            return
        self._marked.mark(queue_key[0])
        now = going.compacted(first, last, self._clock.now_ms())
        self._tables.write([(self.name, _key(queue_key), [*now[:-1], [*map(list, now.cleaned)]])])
        self._needed_from(queue_key)
        self._over()

    def _over(self) -> None:
        """See to the next queue, in a moment."""
        self._is_busy = False
        if self._to_look_at or self._urgent:
            self._schedule(_PAUSE_MS, self._check_again)

    def _check_again(self) -> None:
        with self._job:
            if self.check():
                self._schedule(_PAUSE_MS, self._check_again)

    # -- retention -----------------------------------------------------------------------------

    def _is_left_before(self, before: CompactedSegment | None, reach: int) -> bool:
        """Whether some of the remains is before a log offset."""
        if before is None or before.first == before.last:
            return False
        return self._store.log_offset_of(COMPACTED_TOPIC, before.queue_id, before.first) < reach

    def _needed_from(self, queue_key: QueueKey) -> int:
        """Where in the log the first message of a queue is that is nowhere else, or its end."""
        found = self._needed.get(queue_key)
        if found is None:
            store, before = self._store, self.compacted.get(queue_key)
            found = int(store.log_end)
            if before is not None and before.first < before.last:
                found = store.log_offset_of(COMPACTED_TOPIC, before.queue_id, before.first)
            if queue_key[0] in self._policies:
                found = min(
                    found, store.log_offset_of(*queue_key, 0 if before is None else before.end)
                )
            if found < store.confirmed:  # Else it moves with whatever is written.
                self._needed[queue_key] = found
        return found

    def needed_from(self) -> int:
        """Where in the log the first of all these messages is."""
        return min(map(self._needed_from, self._queues()), default=int(self._store.log_end))

    def prepare_retention(self, reach: int) -> None:
        """Before log files up to this offset are deleted: carry over what is needed of them."""
        if reach <= self._store.log_min:
            return
        for queue_key in self._queues():
            if self._needed_from(queue_key) < reach:
                self._urgent[queue_key] = reach
        if self._urgent and not self._is_busy:
            self._check_again()


def _is_dirty(
    policy: CompactionPolicy, before: CompactedSegment | None, queue: ConsumeQueue, end: int
) -> bool:
    """Whether enough of a queue is new, if messages up to an offset may be compacted."""
    clean, kept = (queue.start, 0) if before is None else (before.clean, before.messages)
    new = end - clean
    return new > 0 and new >= policy.dirty_ratio * (kept + new)


def _newest_batch(queue: ConsumeQueue) -> int:
    """The offset of the newest batch of a queue; a pass takes whole ones."""
    if queue.start == queue.end:
        return queue.end
    at = queue.read_entry(queue.end - 1)[0]
    return queue.first_not_before(lambda entry: entry[0] < at)


def _key(queue_key: QueueKey) -> str:
    return join_key(queue_key[0], str(queue_key[1]))
