"""The store suite: what issue after issue must not make slower.

Appends include everything an `append` does: record, queue entry, tag hash and key index, with
asynchronous flush going on beside it. Each throughput is the best of three rounds, each in a fresh
store; the messages are made before the clock starts.
"""

import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.opening import ChildFailedError, large_store, many_queues
from benchmarks.table import Options, Row, at_least, not_run, under
from benchmarks.timing import ROUNDS, Rate, Stopwatch, best, prepared_input, spread
from benchmarks.traffic import LIST_MESSAGES, lists, queues, unique_key
from onelog.errors import OnelogError
from onelog.message import NewMessage
from onelog.store.message_store import MessageStore
from tests.e2e.java_toolchain import JavaFailedError, JavaMissingError, JavaProgram, build

PEER = "RocketMQ 5.5.0"
FOUR_QUEUES = queues(topics=1, queues_per_topic=4)
PULL_MESSAGES = 32
LARGE_BODY_BYTES = 4096

Lists = Sequence[list[NewMessage]]


def run(options: Options) -> list[Row]:
    """Every measurement; one that fails takes its row, not the whole run."""
    parts: dict[str, Callable[[Options], list[Row]]] = {
        "append": appending,
        "read": reads,
        "inner batch": inner_batch,
        "key look-up": key_lookup,
        "large store": large_store,
        "many queues": many_queues,
    }
    rows = []
    for name, measure in parts.items():
        try:
            rows += measure(options)
        except (OnelogError, ChildFailedError) as error:
            rows.append(not_run(name, str(error).replace(str(options.folder), "...")))
    return rows


def appending(options: Options) -> list[Row]:
    """Everything about appends, the peer last."""
    rows, plain, single = small_bodies(options)
    large_rows, large = large_bodies(options)
    ours = [
        (f"100 B in lists of {LIST_MESSAGES}", 100, plain),
        ("100 B one by one", 100, single),
        (f"4 KiB in lists of {LIST_MESSAGES}", LARGE_BODY_BYTES, large),
    ]
    return [*rows, *large_rows, *java_peer(options, ours)]


@contextmanager
def fresh_store(folder: Path) -> Iterator[MessageStore]:
    """A new store, gone afterwards."""
    own = Path(tempfile.mkdtemp(dir=folder))
    store = MessageStore.open(own)
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(own)


def append_all(folder: Path, work: Lists, *, flushed: bool = False) -> Rate:
    """Append the lists to a fresh store; with `flushed`, until they are on disk."""
    with fresh_store(folder) as store:
        with Stopwatch() as watch:
            for messages in work:
                store.append(messages)
            if flushed:
                store.flush()
        return Rate(sum(map(len, work)), watch.wall_s, watch.cpu_s)


def small_bodies(options: Options) -> tuple[list[Row], Rate, Rate]:
    """100-byte messages; also returns the rates of plain lists and of messages one by one."""
    count = 600 if options.quick else 3_000
    one_queue = FOUR_QUEUES[:1]
    variants: list[tuple[str, Lists]] = [
        ("plain, 4 queues", [*lists(count, 100, FOUR_QUEUES)]),
        ("plain, 1 queue", [*lists(count, 100, one_queue)]),
        ("tag + unique key, 4 queues", [*lists(count, 100, FOUR_QUEUES, keyed=True)]),
        ("one by one", [*lists(count * 16, 100, FOUR_QUEUES, list_messages=1)]),
    ]
    rates = []
    with prepared_input():
        for name, work in variants:
            options.announce(f"append 100 B, {name}")
            rates.append(best(partial(append_all, options.folder, work)))
    rows = [
        at_least(
            f"append 100 B in lists of {LIST_MESSAGES}, {name}",
            rate.per_second,
            "msg/s",
            300_000,
            rate.cpu_us,
            note="best of 3",
        )
        for (name, _), rate in zip(variants[:-1], rates, strict=False)
    ]
    return rows, rates[0], rates[-1]


def write_all(folder: Path, chunks: Sequence[bytes], count: int, *, flushed: bool) -> float:
    """Seconds that plain `os.write` takes for the same bytes in a fresh file."""
    path = folder / "plain"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with Stopwatch() as watch:
            for chunk in itertools.chain.from_iterable(itertools.repeat(chunks, count)):
                os.write(fd, chunk)
            if flushed:
                os.fdatasync(fd)
    finally:
        os.close(fd)
        path.unlink()
    return watch.wall_s


def large_bodies(options: Options) -> tuple[list[Row], Rate]:
    """4 KiB bodies against `os.write` of the same bytes, in turns."""
    work = [*lists(1, LARGE_BODY_BYTES, FOUR_QUEUES)]
    with fresh_store(options.folder) as store:
        places = store.append(work[0])
        record_list = [bytes(store.record(place.log_offset, place.size)) for place in places]
    burst = 250 if options.quick else 1_000
    comparisons = [
        ("into the page cache", "os.write per list", [b"".join(record_list)], burst, False),
        ("into the page cache", "os.write per message", record_list, burst, False),
        ("to the disk", "os.write per list", [b"".join(record_list)], burst * 4, True),
    ]
    rows = []
    fastest = None
    for name, peer, chunks, count, flushed in comparisons:
        options.announce(f"append 4 KiB {name}, against {peer}")
        rates, plain_s = [], []
        for _ in range(2 if flushed else ROUNDS):
            os.sync()  # Both sides start with nothing waiting for the disk.
            rates.append(append_all(options.folder, work * count, flushed=flushed))
            os.sync()
            plain_s.append(write_all(options.folder, chunks, count, flushed=flushed))
        rate = max(rates, key=lambda each: each.per_second)
        fastest = fastest or rate
        volume_mb = sum(map(len, record_list)) * count / 1e6
        rows.append(
            Row(
                f"append 4 KiB in lists of {LIST_MESSAGES}, {name}",
                volume_mb / rate.wall_s,
                "MB/s",
                volume_mb / min(plain_s),
                peer,
                0.6,
                cpu_us=rate.cpu_us,
                note=f"{volume_mb:,.0f} MB a round" + (", fdatasync included" if flushed else ""),
            )
        )
    assert fastest is not None
    return rows, fastest


def java_peer(options: Options, ours: Sequence[tuple[str, int, Rate]]) -> list[Row]:
    """RocketMQ's own store, appending the same messages one by one from one thread.

    `ours` is what was measured here: how, size of the bodies, and rate.
    """
    options.announce("building RocketMQ's store")
    home = options.folder / "home"
    home.mkdir()
    peer = PEER
    theirs: dict[int, tuple[float, float]] = {}
    try:
        program = build("store", "rocketmq5", "onelog.store.Main", home)
        for body_bytes, count in ((100, 1_000_000), (LARGE_BODY_BYTES, 100_000)):
            theirs[body_bytes] = _java_rates(options, program, body_bytes, count)
    except JavaMissingError as missing:
        peer = f"{PEER}: {missing}"
    except JavaFailedError as failed:
        peer = f"{PEER} failed: {str(failed).splitlines()[0][:80]}"
    rows = []
    for name, body_bytes, rate in ours:
        appended, dispatched = theirs.get(body_bytes, (None, 0))
        note = f"the peer: one by one; until its queues have them too, {dispatched:,.0f} msg/s"
        rows.append(
            Row(
                f"append {name}",
                rate.per_second,
                "msg/s",
                appended,
                peer,
                cpu_us=rate.cpu_us,
                note=note if appended else "",
            )
        )
    return rows


def _java_rates(
    options: Options, program: JavaProgram, body_bytes: int, count: int
) -> tuple[float, float]:
    """Messages per second: appended, and appended and entered into their queues."""
    options.announce(f"{PEER} appends {body_bytes} B")
    rates = []
    for number in range(1 if options.quick else ROUNDS):
        folder = options.folder / f"java-{body_bytes}-{number}"
        os.sync()
        (line,) = program.run("bench", folder, "--count", count, "--body", body_bytes)
        rates.append((float(line["appendsPerSecond"]), float(line["dispatchedPerSecond"])))
        shutil.rmtree(folder)
    return max(rates)


def reads(options: Options) -> list[Row]:
    """A queue whose records are neighbours, and four that take turns in the log."""
    count = 500 if options.quick else 3_000
    alone, shared = queues(1, 1, "alone"), queues(1, 4, "shared")
    rows = []
    with fresh_store(options.folder) as store:
        for messages in itertools.chain(lists(count, 100, alone), lists(count, 100, shared)):
            store.append(messages)
        store.flush()
        views, decoded = partial(_read_views, store), partial(_read_decoded, store)
        measures: list[tuple[str, Callable[[str, int], int], int]] = [
            ("as memoryviews", views, 1_000_000),
            ("decoded", decoded, 250_000),
        ]
        for form, read, limit in measures:
            for kind, names in (("1 queue alone", alone), ("4 queues interleaved", shared)):
                options.announce(f"read 100 B {form}, {kind}")
                rate = best(partial(_read_all, read, names))
                measurement = f"read 100 B {form}, {kind}"
                note = f"{PULL_MESSAGES} messages a call"
                row = at_least(measurement, rate.per_second, "msg/s", limit, rate.cpu_us, note)
                rows.append(row)
    return rows


def _read_all(read: Callable[[str, int], int], names: Sequence[tuple[str, int]]) -> Rate:
    with Stopwatch() as watch:
        total = sum(read(topic, queue_id) for topic, queue_id in names)
    return Rate(total, watch.wall_s, watch.cpu_s)


def _read_views(store: MessageStore, topic: str, queue_id: int) -> int:
    offset, end = 0, store.max_offset(topic, queue_id)
    while offset < end:
        offset = store.read(topic, queue_id, offset, PULL_MESSAGES).next_offset
    return offset


def _read_decoded(store: MessageStore, topic: str, queue_id: int) -> int:
    total = 0
    while found := store.messages(topic, queue_id, total, PULL_MESSAGES):
        total += len(found)
    return total


def inner_batch(options: Options) -> list[Row]:
    """One record with 10,000 messages, and its 10,000 queue entries."""
    count = 60 if options.quick else 300
    options.announce("append inner batches")
    (topic, queue_id), *_ = FOUR_QUEUES
    batch = NewMessage(topic, queue_id, os.urandom(1_000_000), inner_count=10_000)
    with fresh_store(options.folder) as store:
        times = spread(itertools.repeat(partial(store.append, [batch]), count))
        assert store.max_offset(topic, queue_id) == count * 10_000
    row = under(
        "append an inner batch of 10,000 (1 MB)",
        times.median_s * 1e3,
        "ms",
        2,
        times.cpu_us,
        f"median of {count}; 99 %: {times.p99_s * 1e3:.2f} ms",
    )
    return [row]


def key_lookup(options: Options) -> list[Row]:
    """A message by its unique key, among a million over eight topics."""
    keys = 200_000 if options.quick else 1_000_000
    names = queues(topics=8, queues_per_topic=1)
    options.announce(f"indexing {keys:,} keys")
    rng = random.Random(1)
    with fresh_store(options.folder) as store:
        for messages in lists(-(-keys // LIST_MESSAGES), 16, names, keyed=True):
            store.append(messages)
        store.flush()

        def find(number: int) -> None:
            topic, _ = names[number % len(names)]
            (at,) = store.find_by_key(topic, unique_key(number))
            assert at < store.log_end

        options.announce("looking keys up")
        times = spread(partial(find, rng.randrange(keys)) for _ in range(20_000))
    row = under(
        f"look up a key among {keys:,}",
        times.median_s * 1e6,
        "us",
        100,
        times.cpu_us,
        f"median of 20,000; 99 %: {times.p99_s * 1e6:.0f} us",
    )
    return [row]
