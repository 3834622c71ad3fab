"""Counters: what was put and got, per topic and per group, over a minute, an hour and a day.

Counting adds into the newest bucket, of ten seconds. Each full bucket joins the last six, which
make the minute, and is poured into the ten-minute bucket; six of those make the hour; and so on
with hours and the day. Only keys that were active cost anything, and an idle broker keeps nothing.

Invariant: a bucket that is not the newest of its row no longer changes.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo

from onelog.clock import Clock

Cell = list[int]
"""Messages, bytes, and calls that added them."""
Key = str | tuple[str, str]
"""A topic, or a topic and a group."""
Bucket = dict[Key, Cell]

_STEP_MS = 10_000
_ROWS = ((10_000, 6), (600_000, 6), (3_600_000, 24))
"""Per row: how long a bucket is, and how many full ones are kept."""
_KEYS_TOGETHER = 5_000
MINUTE, HOUR, DAY = range(3)
_NOTHING: Cell = [0, 0, 0]


@dataclass(frozen=True, slots=True)
class Statistic:
    """One counter over one period: the sum, its rate per second, and the average of one call."""

    total: int = 0
    per_second: float = 0.0
    per_call: float = 0.0


@dataclass(slots=True)
class _Row:
    bucket_ms: int
    full: deque[Bucket]
    started_ms: int
    newest: Bucket = field(default_factory=dict)
    newest_since_ms: int = 0


class Counter:
    """One family of counters, such as messages put per topic. `newest` is what `add` adds to."""

    def __init__(self, now_ms: int) -> None:
        self._rows = [
            _Row(bucket_ms, deque(maxlen=kept), now_ms, {}, now_ms) for bucket_ms, kept in _ROWS
        ]
        self.newest: Bucket = self._rows[MINUTE].newest
        self._sums: Bucket = {}
        self._on_the_way: Bucket = {}
        """What is to be added to the sums, when there is time."""

    def add(self, key: Key, count: int, size: int) -> None:
        """Count `count` messages of `size` bytes in all."""
        cell = self.newest.get(key)
        if cell is None:
            self.newest[key] = [count, size, 1]
        else:
            cell[0] += count
            cell[1] += size
            cell[2] += 1

    def roll(self, now_ms: int) -> Iterator[None]:
        """Begin new buckets where the present ones are full; some keys at a time."""
        for index, row in enumerate(self._rows):
            if now_ms - row.newest_since_ms < row.bucket_ms:
                return
            full, row.newest, row.newest_since_ms = row.newest, {}, now_ms
            row.full.append(full)
            if index == MINUTE:
                self.newest = row.newest
                self._on_the_way = dict(full)
                for number, key in enumerate(full, 1):
                    _add(self._sums, key, self._on_the_way.pop(key, _NOTHING))
                    if number % _KEYS_TOGETHER == 0:
                        yield
            if index + 1 < len(self._rows):
                yield from _pour(full, self._rows[index + 1].newest)

    def over(self, period: int, key: Key, now_ms: int, part: int = 0) -> Statistic:
        """The counter of `key` over a period. `part` 0 counts messages, 1 bytes."""
        row = self._rows[period]
        buckets = [*row.full, *(finer.newest for finer in self._rows[: period + 1])]
        cells = [cell for bucket in buckets if (cell := bucket.get(key)) is not None]
        total = sum(cell[part] for cell in cells)
        calls = sum(cell[0] if part else cell[2] for cell in cells)
        span_ms = len(row.full) * row.bucket_ms + (now_ms - row.newest_since_ms)
        span_ms = max(_STEP_MS, min(span_ms, now_ms - row.started_ms))
        return Statistic(total, total * 1000 / span_ms, total / calls if calls else 0.0)

    def keys(self) -> set[Key]:
        """All that was ever counted here, and not forgotten."""
        return self._sums.keys() | self._on_the_way.keys() | self.newest.keys()

    def sums(self, key: Key) -> tuple[int, int]:
        """Messages and bytes since the start: these never become less."""
        count = size = 0
        for bucket in (self._sums, self._on_the_way, self.newest):
            cell = bucket.get(key)
            if cell is not None:
                count += cell[0]
                size += cell[1]
        return count, size

    def has(self, key: Key) -> bool:
        """Whether anything was counted for the key in the last day."""
        return any(key in bucket for row in self._rows for bucket in (row.newest, *row.full))

    def forget(self, matches: str) -> Iterator[None]:
        """Drop a topic's or group's counters: `matches` is a key, or one half of it."""
        kept = [bucket for row in self._rows for bucket in (row.newest, *row.full)]
        for bucket in (*kept, self._sums, self._on_the_way):
            for number, key in enumerate(list(bucket), 1):
                if matches == key or (isinstance(key, tuple) and matches in key):
                    bucket.pop(key, None)
                if number % _KEYS_TOGETHER == 0:
                    yield


def _pour(source: Bucket, target: Bucket) -> Iterator[None]:
    for number, (key, cell) in enumerate(list(source.items()), 1):
        if number % _KEYS_TOGETHER == 0:
            yield
        _add(target, key, cell)


def _add(target: Bucket, key: Key, cell: Cell) -> None:
    sums = target.get(key)
    if sums is None:
        target[key] = list(cell)
    else:
        for part in range(3):
            sums[part] += cell[part]


@dataclass(slots=True)
class Totals:
    """What the broker did since it started."""

    put_count: int = 0
    put_bytes: int = 0
    put_failed: int = 0
    get_count: int = 0
    found: int = 0
    missed: int = 0


Sample = tuple[int, int, int, int, int]
"""Milliseconds, and the totals put, got, found, missed at that time."""


class Stats:
    """The broker's counters."""

    def __init__(self, clock: Clock, cluster: str, zone: tzinfo = UTC) -> None:
        now = clock.now_ms()
        self._clock = clock
        self._cluster = cluster
        self._zone = zone
        self.started_ms = now
        self.totals = Totals()
        self.topic_put = Counter(now)
        self.group_get = Counter(now)
        self.sent_back = Counter(now)
        self._broker = {"BROKER_PUT_NUMS": Counter(now), "BROKER_GET_NUMS": Counter(now)}
        self._seen = Totals()
        self._work: deque[Iterator[None]] = deque()
        """What is done a part at a time."""
        self._samples: deque[Sample] = deque([(now, 0, 0, 0, 0)], maxlen=61)
        self.yesterday_morning = Totals()
        self.today_morning = Totals()
        self._midnight_ms = self._next_midnight(now)
        self._names = {
            "TOPIC_PUT_NUMS": (self.topic_put, 0),
            "TOPIC_PUT_SIZE": (self.topic_put, 1),
            "GROUP_GET_NUMS": (self.group_get, 0),
            "GROUP_GET_SIZE": (self.group_get, 1),
            "SNDBCK_PUT_NUMS": (self.sent_back, 0),
            "BROKER_PUT_NUMS": (self._broker["BROKER_PUT_NUMS"], 0),
            "BROKER_GET_NUMS": (self._broker["BROKER_GET_NUMS"], 0),
        }

    def _next_midnight(self, now_ms: int) -> int:
        day = datetime.fromtimestamp(now_ms / 1000, self._zone).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        return int((day + timedelta(days=1)).timestamp() * 1000)

    def put(self, topic: str, count: int, size: int) -> None:
        """Messages were stored."""
        self.topic_put.add(topic, count, size)
        totals = self.totals
        totals.put_count += count
        totals.put_bytes += size

    def got(self, group: str | None, topic: str, count: int, size: int) -> None:
        """Messages were handed to a group, or to somebody who names none, as Kafka's fetches."""
        if group is not None:
            self.group_get.add((topic, group), count, size)
        totals = self.totals
        totals.get_count += count
        totals.found += 1

    def tick(self) -> bool:
        """Every ten seconds: close buckets, sample the totals, notice midnight.

        True if there is more to do, because there are very many keys: then call it again, soon.
        """
        if not self._work:
            self._sample_totals()
        return self._work_some()

    def _work_some(self) -> bool:
        """Go on with what takes long; whether there is more of it."""
        while self._work:
            for _ in self._work[0]:
                return True
            self._work.popleft()
        return False

    def _sample_totals(self) -> None:
        now = self._clock.now_ms()
        totals, seen = self.totals, self._seen
        put, got = totals.put_count - seen.put_count, totals.get_count - seen.get_count
        if put:
            self._broker["BROKER_PUT_NUMS"].add(self._cluster, put, 0)
        if got:
            self._broker["BROKER_GET_NUMS"].add(self._cluster, got, 0)
        seen.put_count, seen.get_count = totals.put_count, totals.get_count
        for counter in (self.topic_put, self.group_get, self.sent_back, *self._broker.values()):
            self._work.append(counter.roll(now))
        self._samples.append(self._sample(now))
        if now >= self._midnight_ms:
            self._midnight_ms = self._next_midnight(now)
            self.yesterday_morning = self.today_morning
            self.today_morning = replace(totals)

    def _sample(self, now_ms: int) -> Sample:
        totals = self.totals
        return (now_ms, totals.put_count, totals.get_count, totals.found, totals.missed)

    def rates(self) -> dict[str, tuple[float, float, float]]:
        """Put, transferred, found and missed per second over ten seconds, a minute, ten minutes."""
        now = self._clock.now_ms()
        last = self._sample(now)
        rates: dict[str, list[float]] = {"put": [], "transferred": [], "found": [], "missed": []}
        for period_ms in (10_000, 60_000, 600_000):
            first = self._samples[0]
            for sample in self._samples:
                if sample[0] <= now - period_ms:
                    first = sample
            span_s = max(1, now - first[0]) / 1000
            for column, name in enumerate(rates, start=1):
                rates[name].append((last[column] - first[column]) / span_s)
        return {name: (values[0], values[1], values[2]) for name, values in rates.items()}

    def find(self, name: str, key: str) -> tuple[Statistic, Statistic, Statistic] | None:
        """A counter over a minute, an hour and a day, by RocketMQ's name; None if it is unknown."""
        found = self._names.get(name)
        if found is None:
            return None
        counter, part = found
        topic, _, group = key.partition("@")
        wanted: Key = (topic, group) if counter.has((topic, group)) else key
        if not counter.has(wanted):
            return None
        now = self._clock.now_ms()
        return (
            counter.over(MINUTE, wanted, now, part),
            counter.over(HOUR, wanted, now, part),
            counter.over(DAY, wanted, now, part),
        )

    def put_rate(self, topic: str) -> float:
        """Messages per second that came into a topic in the last minute."""
        return self.topic_put.over(MINUTE, topic, self._clock.now_ms()).per_second

    def get_rate(self, group: str, topic: str) -> float:
        """Messages per second that a group got from a topic in the last minute."""
        return self.group_get.over(MINUTE, (topic, group), self._clock.now_ms()).per_second

    def forget(self, topic_or_group: str) -> None:
        """A topic or group was deleted."""
        for counter in (self.topic_put, self.group_get, self.sent_back):
            self._work.append(counter.forget(topic_or_group))
        self._work_some()
