"""Where a query's messages are: on the brokers of a cluster, or in the files of a store.

Invariant: a snapshot has the queues that the query subscribes to and no others; a topic that is
named and does not exist raises `ConfigError`, unless the query has seen it before.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.client.message import Queue
from onelog.errors import ConfigError, StoreError, TopicNotFoundError
from onelog.message import QueueOffset
from onelog.names import (
    DEAD_LETTER_PREFIX,
    LIGHT_QUEUE_PREFIX,
    OWN_PREFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
)
from onelog.rocketmq.names import BENCHMARK_TOPIC, SYSTEM_TOPICS, UPPER_SYSTEM_PREFIX
from onelog.spark.brokers import Brokers, connect
from onelog.spark.options import ReadOptions, TopicSelection
from onelog.spark.read.offsets import Extent, Origin, Snapshot, find_queue, queue_name

if TYPE_CHECKING:
    from onelog.store.reader import StoreReader

SAMPLE_RECORDS = 64
_INTERNAL_PREFIXES = (
    RETRY_PREFIX,
    DEAD_LETTER_PREFIX,
    LIGHT_QUEUE_PREFIX,
    SYSTEM_PREFIX,
    OWN_PREFIX,
    UPPER_SYSTEM_PREFIX,
)


def _is_internal(topic: str) -> bool:
    """Whether a read of all topics leaves this one out."""
    return topic.startswith(_INTERNAL_PREFIXES) or (
        topic in SYSTEM_TOPICS and topic != BENCHMARK_TOPIC
    )


def origin_of(options: ReadOptions) -> "ClusterOrigin | StoreOrigin":
    """Where the messages of a read come from."""
    if options.store is not None:
        return StoreOrigin(Path(options.store), options.subscription)
    assert options.link is not None
    return ClusterOrigin(connect(options.link), options.subscription)


class ClusterOrigin(Origin):
    """Topics on brokers.

    A queue ends before its first transaction that is not decided.
    """

    def __init__(self, brokers: Brokers, subscription: TopicSelection) -> None:
        self._brokers = brokers
        self._subscription = subscription

    def snapshot(self, *, missing_ok: bool = False) -> Snapshot:
        topics = self._topics(missing_ok)
        try:
            found = self._brokers.snapshot(topics, missing_ok=missing_ok)
        except TopicNotFoundError as error:
            raise ConfigError(
                f"option {_named_by(self._subscription)}: {error}. Create it, correct the name, or "
                "start its broker"
            ) from None
        return Snapshot(
            _assigned(self._subscription, found.extents, missing_ok),
            found.incarnations,
            written=found.written,
        )

    def _topics(self, missing_ok: bool) -> Sequence[str]:
        wanted = self._subscription
        if wanted.pattern is None:
            return wanted.topics or tuple(wanted.queues or ())
        known = self._brokers.topics()
        return _matching(wanted.pattern, known, missing_ok)

    def offsets_at(self, queues: Iterable[Queue], time_ms: int) -> dict[Queue, int]:
        """The first offset of each queue whose message was stored at a time or later."""
        return self._brokers.offsets_at(queues, time_ms)

    def group_positions(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        return self._brokers.group_positions(group, queues)

    def record_bytes(self, starts: Mapping[Queue, int]) -> dict[Queue, float]:
        """About how many bytes one message has in each queue."""
        return self._brokers.record_bytes(starts)

    def store_times(self, positions: Mapping[Queue, int]) -> dict[Queue, int]:
        """When the first message of each queue from an offset on was stored."""
        return self._brokers.store_times(positions)


class StoreOrigin(Origin):
    """Topics in a store's files, as they are when they are asked for.

    A queue ends before its first transaction that is not decided.
    """

    def __init__(self, folder: Path, subscription: TopicSelection) -> None:
        self._folder = folder
        self._subscription = subscription

    def _open(self) -> "StoreReader":
        # The store's files need numpy, which brokers do not.
        from onelog.store.readonly import open_readonly

        try:
            return open_readonly(self._folder)
        except StoreError as error:
            raise ConfigError(f"option store: {error}") from None

    def snapshot(self, *, missing_ok: bool = False) -> Snapshot:
        from onelog.store.outcomes import outcomes_in

        reader = self._open()
        queues = reader.queues()
        wanted = self._subscription
        if wanted.pattern is not None:
            topics = _matching(wanted.pattern, queues, missing_ok)
        elif wanted.topics is None and wanted.queues is None:
            topics = [topic for topic in queues if not _is_internal(topic)]
        else:
            topics = list(wanted.topics or wanted.queues or ())
            self._check(topics, queues, missing_ok)
        outcomes = outcomes_in(reader, topics)
        extents, written = {}, {}
        for topic in topics:
            for queue_id in queues.get(topic, ()):
                start, end = reader.min_offset(topic, queue_id), reader.max_offset(topic, queue_id)
                if (known := outcomes.get((topic, queue_id))) is not None:
                    stable = QueueOffset(max(start, known.stable_end(end)))
                    if stable < end:
                        written[Queue(topic, "", queue_id)] = end
                    end = stable
                extents[Queue(topic, "", queue_id)] = Extent(start, end)
        aborted = {
            Queue(topic, "", queue_id): known.aborted
            for (topic, queue_id), known in outcomes.items()
            if known.aborted
        }
        return Snapshot(_assigned(wanted, extents, missing_ok), aborted=aborted, written=written)

    def _check(self, topics: Sequence[str], known: Iterable[str], missing_ok: bool) -> None:
        missing = [topic for topic in topics if topic not in known]
        if missing and not missing_ok:
            there = ", ".join(topic for topic in known if not _is_internal(topic)) or "none"
            raise ConfigError(
                f"option {_named_by(self._subscription)}: the store {self._folder} has no topic "
                f"{missing[0]!r}; there are {there}"
            )

    def offsets_at(self, queues: Iterable[Queue], time_ms: int) -> dict[Queue, int]:
        """The first offset of each queue whose message was stored at a time or later."""
        reader = self._open()
        return {
            queue: int(reader.offset_by_time(queue.topic, queue.queue_id, time_ms))
            for queue in queues
        }

    def group_positions(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Positions are the broker's; the options do not let anybody ask for them here."""
        raise ConfigError("option startingOffsets: group is for brokers, and not for a store")

    def record_bytes(self, starts: Mapping[Queue, int]) -> dict[Queue, float]:
        """About how many bytes one message has in each queue."""
        reader = self._open()
        found = {}
        for queue, start in starts.items():
            entries = list(reader.entries(queue.topic, queue.queue_id, start, SAMPLE_RECORDS))
            sizes = {at: size for at, size, _ in entries}
            found[queue] = sum(sizes.values()) / len(entries) if entries else 0.0
        return found

    def store_times(self, positions: Mapping[Queue, int]) -> dict[Queue, int]:
        """When the first message of each queue from an offset on was stored."""
        reader = self._open()
        found = {q: reader.store_time(q.topic, q.queue_id, at) for q, at in positions.items()}
        return {queue: ms for queue, ms in found.items() if ms is not None}


def _named_by(subscription: TopicSelection) -> str:
    return "assign" if subscription.queues is not None else "subscribe"


def _matching(pattern: str, topics: Iterable[str], missing_ok: bool) -> list[str]:
    compiled = re.compile(pattern)
    known = [topic for topic in topics if not _is_internal(topic)]
    found = [topic for topic in known if compiled.fullmatch(topic)]
    if not found and not missing_ok:
        raise ConfigError(
            f"option subscribePattern: no topic matches {pattern!r} as a whole; there are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return found


def _assigned(
    subscription: TopicSelection, extents: Mapping[Queue, Extent], missing_ok: bool
) -> dict[Queue, Extent]:
    """Only the queues that were assigned, where that was said."""
    if subscription.queues is None:
        return dict(extents)
    found: dict[Queue, Extent] = {}
    for topic, names in subscription.queues.items():
        for name in names:
            if missing_ok and not any(
                each.topic == topic and name in (queue_name(each), str(each.queue_id))
                for each in extents
            ):
                continue
            queue = find_queue("assign", topic, name, extents)
            found[queue] = extents[queue]
    return found
