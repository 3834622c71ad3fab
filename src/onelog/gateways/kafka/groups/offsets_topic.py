"""`__consumer_offsets`: where groups are and who is in them, as Kafka's tools read it.

Nothing is written there. The topic is a view of the broker's tables: each key has one place, that
of its last change, and its value is looked up when it is read, so that a reader sees what it would
see of a compacted topic. A group without a position any more leaves a record without a value.

    key      int16 1, group, topic, int32 partition
    value    int16 3, int64 offset, int32 leader epoch, text, int64 time of the commit
    key      int16 2, group
    value    int16 3, protocol type, int32 generation, protocol, leader, int64 time, members:
             id, instance, client, host, int32 rebalance and session time, subscription, assignment

    names have an int16 length (-1: none), bytes and lists an int32

An offset is a place in the log up to which nothing of the change is: the end of the log at the
change before. So offsets grow over restarts and changes of masters, with gaps. The view begins with
its first reader; what groups did before that is at the places before the end that the log had then.

Invariant: the places of a partition grow, and lie before its end, which lies before the log's.
"""

import asyncio
import struct
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from operator import itemgetter

from onelog.clock import Clock
from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.core.cursors.times import Dated
from onelog.core.membership.classic import ClassicGroup
from onelog.errors import InvalidQueueError, NotCoordinatorError, NotLeaderError
from onelog.gateways.kafka.cluster.view import Cluster
from onelog.gateways.kafka.names import is_visible
from onelog.names import OFFSETS_TOPIC, VIEW_PARTITIONS, VIEW_TOPICS
from onelog.record.forms import kafka
from onelog.record.forms.neutral import Neutral
from onelog.store.reader import Fetched, FetchStatus

_AT_ONCE = 4
"""Parts of the tables, 500 entries each, that the first reader waits for."""
_RECORDS_MAX, _BATCH_RECORDS = 1_000, 100
_TURN_SECONDS = 0.005
"""How long all readers together may read in one turn of the loop."""
_GONE_MAX = 1_000
"""Records without a value that are kept of a partition."""
_GAP_MAX = (1 << 31) - 1

Key = tuple[str] | tuple[str, str, int]
"""A group; or a group, a topic, and the queue of its position."""


class _Partition:
    """One partition: the place and time of each key, and the keys in the order of their places."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.live: dict[Key, tuple[int, int]] = {}
        self.log: list[tuple[int, Key]] = []
        self.gone: set[Key] = set()
        """Those that have no value any more."""

    def begin_with(self, keys: list[Key], end: int, now_ms: int) -> None:
        """These were there before anything else was put here."""
        older = [each for each in keys if each not in self.live]
        begin = max(0, end - len(older))
        self.live |= {key: (queue_id, now_ms) for queue_id, key in enumerate(older, begin)}
        self.log = list(enumerate(older, begin)) + self.log
        self.end = max(self.end, begin + len(older))

    def put(self, key: Key, floor: int, now_ms: int, *, is_gone: bool) -> None:
        queue_id = max(self.end, floor)
        self.live[key] = queue_id, now_ms
        self.log.append((queue_id, key))
        self.end = queue_id + 1
        if is_gone:
            self.gone.add(key)
        else:
            self.gone.discard(key)
        if len(self.log) + len(self.gone) > 2 * (len(self.live) + _GONE_MAX):
            self._tidy()

    def _tidy(self) -> None:
        """Forget places that keys have left, and keys that lost their values first."""
        kept = [each for each in self.log if self.live[each[1]][0] == each[0]]
        for key in [key for _, key in kept if key in self.gone][:-_GONE_MAX]:
            del self.live[key]
            self.gone.remove(key)
        self.log = [each for each in kept if each[1] in self.live]


class OffsetsTopic:
    """The view, for all sessions. It costs nothing before its first reader."""

    def __init__(self, broker: Broker, cluster: Cluster, clock: Clock) -> None:
        self._broker = broker
        self._cluster = cluster
        self._clock = clock
        self._partitions: list[_Partition] = []
        self._here: list[int] = []
        """Of the partitions those of this broker; in a cluster others have some."""
        self._queues: dict[tuple[str, str], set[int]] = {}
        """Where a group has a position in a topic, or had one."""
        self._filling: Iterator[None] | None = None
        self._floor = self._log_end = 0
        self._woken: set[int] = set()
        self._turn_ends = 0.0
        broker.cursors.serve_view(OFFSETS_TOPIC, self._read)
        for name in VIEW_TOPICS - {OFFSETS_TOPIC}:
            broker.cursors.serve_view(name, _read_nothing)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Where a partition begins and ends."""
        found = self._partition(partition)
        return (found.log[0][0] if found.log else found.end), found.end

    def dated(self, partition: int, time_ms: int | None) -> Dated | None:
        """The first record of a time or later; the last record for None."""
        found = self._partition(partition)
        for queue_id, key in found.log if time_ms is not None else reversed(found.log):
            at, seen_ms = found.live[key]
            if at == queue_id and seen_ms >= (time_ms or 0):
                return Dated(queue_id, seen_ms)
        return None

    def _partition(self, partition: int) -> _Partition:
        if not 0 <= partition < VIEW_PARTITIONS:
            raise InvalidQueueError(f"{OFFSETS_TOPIC} has no partition {partition}")
        if not self._partitions or self._here != self._cluster.view_partitions():
            self._begin()
        if self._filling is not None or partition not in self._here:
            raise NotLeaderError(
                f"partition {partition} of {OFFSETS_TOPIC} is not here, or not yet"
            )
        return self._partitions[partition]

    # -- following the tables ------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin with what there is: there is a first reader, or brokers have other partitions."""
        if not self._partitions:
            self._broker.cursors.on_commit.append(self._committed)
            self._broker.groups.coordinator.on_settled.append(self._settled)
        self._here = self._cluster.view_partitions()
        self._floor = self._log_end = end = self._broker.admin.log_end
        self._partitions = [_Partition(end) for _ in range(VIEW_PARTITIONS)]
        self._queues.clear()
        self._filling = self._fill(end)
        self._fill_some(_AT_ONCE)

    def _fill_some(self, parts: int = 1) -> None:
        for _ in range(parts):
            if self._filling is not None:
                next(self._filling, None)
        if self._filling is not None:
            asyncio.get_running_loop().call_soon(self._fill_some)

    def _fill(self, end: int) -> Iterator[None]:
        coordinator, keys = self._broker.groups.coordinator, dict[int, list[Key]]()
        for part in coordinator.committed_parts(SELF):
            for group, topic, queues in part:
                if self._here and is_visible(self._broker, topic):
                    self._queues.setdefault((group, topic), set()).update(queues)
                    known = keys.setdefault(self._number(group), [])
                    known += [(group, topic, queue_id) for queue_id in queues]
            yield
        for name in coordinator.classic_names(SELF) if self._here else ():
            keys.setdefault(self._number(name), []).append((name,))
        yield
        now_ms = self._clock.now_ms()
        for number, some in keys.items():
            self._partitions[number].begin_with(some, end, now_ms)
        self._filling = None

    def _number(self, group: str) -> int:
        """The partition of a group: Kafka's, of those that this broker has."""
        return self._here[abs(_java_hash(group)) % len(self._here)]

    def _committed(self, group: str, topic: str, queues: Mapping[int, int] | None) -> None:
        """A group has positions in a topic, or (None) all of them are forgotten."""
        if not is_visible(self._broker, topic):
            return
        known = self._queues.setdefault((group, topic), set())
        changed = set(known) if queues is None else set(queues)
        known |= changed
        self._put(group, [(group, topic, each) for each in sorted(changed)], queues is None)

    def _settled(self, group: str, is_classic: bool) -> None:
        """A group has other members, or is none of the classic kind any more."""
        if is_classic or (self._here and (group,) in self._partitions[self._number(group)].live):
            self._put(group, [(group,)], not is_classic)

    def _put(self, group: str, keys: list[Key], is_gone: bool) -> None:
        if not self._here:
            return
        if (log_end := self._broker.admin.log_end) != self._log_end:
            # Changes of one record follow each other; each took more bytes than places.
            self._floor, self._log_end = self._log_end, log_end
        number, now_ms = self._number(group), self._clock.now_ms()
        for key in keys:
            self._partitions[number].put(key, self._floor, now_ms, is_gone=is_gone)
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._wake)
        self._woken.add(number)

    def _wake(self) -> None:
        woken, self._woken = self._woken, set()
        for number in woken:
            self._broker.cursors.notify_arrival(OFFSETS_TOPIC, number)

    # -- reading -------------------------------------------------------------------------------

    def _read(self, number: int, offset: int, bytes_max: int) -> Fetched:
        """What is in a partition from an offset on."""
        partition = self._partition(number)
        end = partition.end
        if not 0 <= offset <= end:
            return Fetched(FetchStatus.OFFSET_OVERFLOW_BADLY, [], offset, 0, end)
        if offset == end:
            return Fetched(FetchStatus.OFFSET_OVERFLOW_ONE, [], offset, 0, end)
        if not bytes_max or not self._has_turn():
            return Fetched(FetchStatus.FULL, [], offset, 0, end)
        batches: list[memoryview] = []
        run: list[Neutral] = []
        count = size = 0
        begin = following = offset
        first = bisect_left(partition.log, offset, key=itemgetter(0))
        for queue_id, key in partition.log[first : first + 2 * _RECORDS_MAX]:
            if run and (queue_id != following or len(run) >= _BATCH_RECORDS):
                batches.append(memoryview(kafka.from_neutral(run, begin)))
                size += len(batches[-1])
                run = []
                is_much = size >= bytes_max or count >= _RECORDS_MAX
                if is_much or (count >= _BATCH_RECORDS and not self._has_turn()):
                    break
            following = queue_id + 1
            at, time_ms = partition.live.get(key, (-1, 0))
            if at == queue_id and (record := self._record(key, time_ms)) is not None:
                if not run:
                    begin = queue_id
                run.append(record)
                count += 1
        if run:
            batches.append(memoryview(kafka.from_neutral(run, begin)))
            size += len(batches[-1])
        if not batches:
            beyond = min(max(following, offset + 1), offset + _GAP_MAX)
            return Fetched(FetchStatus.MESSAGE_WAS_REMOVING, [], beyond, 0, end)
        return Fetched(FetchStatus.FOUND, batches, following, 0, end, count, size)

    def _has_turn(self) -> bool:
        """Whether there is time for more in this turn of the loop."""
        now = time.perf_counter()
        if not self._turn_ends:
            self._turn_ends = now + _TURN_SECONDS
            asyncio.get_running_loop().call_soon(self._end_turn)
        return now < self._turn_ends

    def _end_turn(self) -> None:
        self._turn_ends = 0.0

    def _record(self, key: Key, time_ms: int) -> Neutral | None:
        """The record of a key as it is now; None if nobody is to see it."""
        coordinator = self._broker.groups.coordinator
        try:
            if len(key) == 1:
                group = coordinator.classic_group(SELF, key[0])
                value = None if group is None else _group_value(group, time_ms)
                return Neutral(_GROUP_KEY + _text(key[0]), value, (), time_ms)
            name, topic, queue_id = key
            partition = self._cluster.partition(topic, queue_id)
            if partition is None:
                return None
            position = coordinator.committed(SELF, name, topic, queue_id)
        except NotCoordinatorError:
            return None
        found = _POSITION_KEY + _text(name) + _text(topic) + _INT.pack(partition)
        if position is None:
            return Neutral(found, None, (), time_ms)
        offset, note, _ = position
        head = _POSITION.pack(3, offset, note.epoch)
        return Neutral(found, head + _text(note.text) + _LONG.pack(time_ms), (), time_ms)


def _read_nothing(partition: int, offset: int, bytes_max: int) -> Fetched:
    """A topic in which Kafka keeps what is kept elsewhere here."""
    if not 0 <= partition < VIEW_PARTITIONS:
        raise InvalidQueueError(f"there is no partition {partition}")
    status = FetchStatus.OFFSET_OVERFLOW_BADLY if offset else FetchStatus.OFFSET_OVERFLOW_ONE
    return Fetched(status, [], offset, 0, 0)


# -- Kafka's words -------------------------------------------------------------------------------

_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_POSITION = struct.Struct(">hqi")
_POSITION_KEY, _GROUP_KEY = _SHORT.pack(1), _SHORT.pack(2)


def _text(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _bytes(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _group_value(group: ClassicGroup, time_ms: int) -> bytes:
    is_empty = not group.members
    pieces = [
        _SHORT.pack(3),
        _text(group.protocol_type),
        _INT.pack(group.generation),
        _text(None if is_empty else group.protocol),
        _text(None if is_empty else group.leader),
        _LONG.pack(time_ms),
        _INT.pack(len(group.members)),
    ]
    for each in group.members.values():
        pieces += [
            _text(each.member_id),
            _text(each.instance_id),
            _text(each.client_id),
            _text(each.client_host),
            _INT.pack(each.rebalance_ms),
            _INT.pack(each.session_ms),
            _bytes(each.metadata(group.protocol)),
            _bytes(each.assignment),
        ]
    return b"".join(pieces)


def _java_hash(text: str) -> int:
    """What Java's String.hashCode says, by which Kafka knows the partition of a group."""
    found = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        found = (31 * found + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    found -= (found & 0x80000000) << 1
    return 0 if found == -(1 << 31) else found
