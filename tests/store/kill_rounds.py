"""Kill -9 as often as it takes: a writer dies at a random moment, the next one checks and goes on.

    python -m tests.store.kill_rounds FOLDER ROUNDS SEED

Each round is a child forked from this process, which has everything imported already. The child
opens the store that the one before it left behind, checks it against what was acknowledged, and
writes on, telling each acknowledgement through a pipe, until it is killed; some are killed while
they still recover, some stop cleanly. After some rounds a store is verified as a whole and the
next one begins, with other settings.

A body names its topic, the topic's generation (how often it was deleted), queue and queue offset,
so every message that is found says by itself whether it is the right one.

Invariant: this process never opens a store, so its children inherit nothing but its memory: what
was acknowledged.
"""

import bisect
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.message import NewMessage, NewRun
from onelog.store.message_store import MessageStore
from onelog.store.verify import verify

ROUNDS_PER_STORE = 25
TOPICS = ("orders", "payments", "letters")
QUEUES = 2
SHARED_QUEUE = "%LMQ%shared"
RETENTION_MS = 6_000
STEP_MS = 40
OPEN_SECONDS_MAX = 60.0
BODY_BYTES_MAX = 1_500
# Some die at once, most among their first writes, some later: after checkpoints and retention.
KILL_AFTER_S = (0.003, 0.02, 0.05, 0.1)


class RoundError(Exception):
    """A store was not what it had to be; the message says how to see it again."""


@dataclass
class Acknowledged:
    """What the writers were told is safe, and what they had begun when they died."""

    stored_ms: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """By topic and queue id, when each message was stored: the index is its queue offset."""
    generation: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    deleting: str = ""
    """A topic whose deletion began, and nobody knows how far it came."""
    expired_ms: int = 0
    """What was stored until then may be gone."""
    shared: int = 0
    now_ms: int = ManualClock().now_ms()

    def take(self, line: str) -> None:
        """A line that a writer told."""
        kind, *words = line.split(" ")
        if kind == "stored":
            topic, queue_id, first, count, ms = words[0], *map(int, words[1:])
            times = self.stored_ms[topic, queue_id]
            # What was appended and not told any more is there as well, and older than this.
            times += [times[-1] if times else 0] * (first - len(times)) + [ms] * count
            self.now_ms = max(self.now_ms, ms)
        elif kind == "shared":
            self.shared = int(words[0])
        elif kind == "deleting":
            self.deleting = words[0]
        elif kind == "deleted":
            self.deleting = ""
            self.generation[words[0]] += 1
            for queue_id in range(QUEUES):
                self.stored_ms.pop((words[0], queue_id), None)
        elif kind == "expiring":
            self.expired_ms = int(words[0])
            self.now_ms = max(self.now_ms, int(words[1]))


def body_of(topic: str, generation: int, queue_id: int, offset: int, count: int) -> bytes:
    """What the message at a place says."""
    start = f"{topic} {generation} {queue_id} {offset} {count} ".encode()
    return start + b"-" * ((offset * 131 + len(topic)) % BODY_BYTES_MAX)


class Writer:
    """A child's life: check, then write until the end."""

    def __init__(self, store: MessageStore, clock: ManualClock, known: Acknowledged, out: int):
        self._store = store
        self._clock = clock
        self._known = known
        self._out = out
        self._sync = store.config.flush == "sync"

    def tell(self, *lines: str) -> None:
        """Through the pipe; less than what would be cut in two."""
        os.write(self._out, "".join(f"{line}\n" for line in lines).encode())

    # -- checking ------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything acknowledged is there, and nothing else but what was on its way."""
        for topic in TOPICS:
            if topic != self._known.deleting:
                for queue_id in range(QUEUES):
                    self._check_queue(topic, queue_id)
        strange = set(self._store.queues()) - {*TOPICS, SHARED_QUEUE}
        assert not strange, f"unknown topics {strange}"
        assert self._store.max_offset(SHARED_QUEUE, 0) >= self._known.shared, "a shared entry"

    def _check_queue(self, topic: str, queue_id: int) -> None:
        store, known = self._store, self._known
        where = f"{topic} {queue_id}"
        stored_ms = known.stored_ms[topic, queue_id]
        start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        assert end >= len(stored_ms), f"{where} ends at {end}, not {len(stored_ms)}: lost"
        expired = bisect.bisect_right(stored_ms, known.expired_ms)
        # If all that is known may be gone, so may some that nobody was told of.
        assert start <= expired or expired == len(stored_ms), f"{where} starts at {start}: lost"
        entries = list(store.entries(topic, queue_id, start, end - start))
        assert len(entries) == end - start, f"{where} has {len(entries)} of {end - start} entries"
        last_at, first, count = -1, 0, 0
        for offset, (at, _, _) in enumerate(entries, start):
            if at != last_at:
                message = store.message_at(at)
                first, count = map(int, bytes(message.body).split(b" ", 5)[3:5])
                expected = body_of(topic, known.generation[topic], queue_id, first, count)
                assert message.body == expected, f"{where} {offset}: {bytes(message.body)[:60]!r}"
                last_at = at
            assert first <= offset < first + count, f"{where} {offset} is {first} + {count}"
        if entries:
            key = f"{topic}-{known.generation[topic]}-{queue_id}-{first}"
            assert store.find_by_key(topic, key) == [last_at], f"{where}: key {key}"

    # -- writing -------------------------------------------------------------------------------

    def write(self, dice: Random) -> None:
        """Go on until killed, or until a clean stop is drawn."""
        if self._known.deleting:
            self._delete(self._known.deleting)
        while True:
            self._clock.advance(STEP_MS)
            draw = dice.random()
            if draw < 0.70:
                self._append(dice, dice.randrange(1, 7))
            elif draw < 0.80:
                self._append_run(dice, dice.randrange(2, 9))
            elif draw < 0.90:
                self._append_special(dice)
            elif draw < 0.95:
                self._expire()
            elif draw < 0.98:
                self._store.flush()
            elif draw < 0.995:
                self._delete(dice.choice(TOPICS))
            else:
                self._store.close()
                return

    def _message(self, topic: str, queue_id: int, offset: int, count: int = 1) -> NewMessage:
        generation = self._known.generation[topic]
        key = f"{topic}-{generation}-{queue_id}-{offset}"
        properties = f"KEYS\x01{key}\x02TAGS\x01t{offset % 3}\x02".encode()
        body = body_of(topic, generation, queue_id, offset, count)
        return NewMessage(topic, queue_id, body, properties, inner_count=count)

    def _append(self, dice: Random, size: int) -> None:
        messages = []
        places: dict[tuple[str, int], tuple[int, int]] = {}
        for _ in range(size):
            place = dice.choice(TOPICS), dice.randrange(QUEUES)
            first, count = places.get(place, (int(self._store.max_offset(*place)), 0))
            messages.append(self._message(*place, first + count))
            places[place] = first, count + 1
        self._store.append(messages)
        self._acknowledge(places)

    def _append_run(self, dice: Random, size: int) -> None:
        topic, queue_id = dice.choice(TOPICS), dice.randrange(QUEUES)
        first = int(self._store.max_offset(topic, queue_id))
        messages = [self._message(topic, queue_id, first + number) for number in range(size)]
        parts = [(0, bytes(each.body), each.properties) for each in messages]
        source = b"".join(body + properties for _, body, properties in parts)
        self._store.append_runs([NewRun(topic, queue_id, parts, source)])
        self._acknowledge({(topic, queue_id): (first, size)})

    def _append_special(self, dice: Random) -> None:
        """An inner batch, or a message that a second queue shares."""
        place = dice.choice(TOPICS), dice.randrange(QUEUES)
        first, count = int(self._store.max_offset(*place)), dice.randrange(1, 5)
        message = self._message(*place, first, count)
        if count == 1:
            message = message._replace(extra_queues=(SHARED_QUEUE,))
        self._store.append([message])
        self._acknowledge({place: (first, count)})
        self.tell(f"shared {self._store.max_offset(SHARED_QUEUE, 0)}")

    def _acknowledge(self, places: dict[tuple[str, int], tuple[int, int]]) -> None:
        if self._sync:
            assert self._store.wait_flushed(self._store.log_end, 30), "not flushed in 30 s"
        ms = self._store.last_append_ms
        self.tell(
            *(
                f"stored {topic} {queue_id} {first} {count} {ms}"
                for (topic, queue_id), (first, count) in places.items()
            )
        )

    def _expire(self) -> None:
        now_ms = max(self._clock.now_ms(), self._store.last_append_ms)
        self.tell(f"expiring {now_ms - RETENTION_MS} {now_ms}")
        self._store.retention.disk = lambda _: 10.0
        self._store.retention.run({}, manual=True)

    def _delete(self, topic: str) -> None:
        self.tell(f"deleting {topic}")
        self._store.delete_topic(topic)
        self.tell(f"deleted {topic}")
        self._known.generation[topic] += 1


def settings(dice: Random) -> StoreConfig:
    """Small files, so that a few writes roll them; all else at random."""
    return StoreConfig(
        segment_bytes=dice.choice((8, 16, 64)) * 1024,
        queue_file_entries=dice.choice((10, 50, 1_000)),
        index_slots=64,
        index_entries=dice.choice((100, 1_000)),
        body_bytes_max=BODY_BYTES_MAX + 100,
        record_crc=dice.random() < 0.5,
        flush="sync" if dice.random() < 0.4 else "async",
        flush_interval_ms=dice.choice((1, 5, 50)),
        flush_pages_min=dice.choice((0, 4)),
        checkpoint_interval_ms=dice.choice((1, 5, 20, 200)),
        retention_ms=RETENTION_MS,
    )


def live(folder: Path, config: StoreConfig, known: Acknowledged, dice: Random, out: int) -> None:
    """What a child does until it ends."""
    # A deletion that was cut short may leave a part of the topic, until it is deleted again.
    if dice.random() < 0.1 and (folder / "commitlog").is_dir() and not known.deleting:
        verify_all(folder, config)
    clock = ManualClock(known.now_ms)
    writer = Writer(MessageStore.open(folder, config, clock), clock, known, out)
    writer.check()
    writer.tell("open")
    writer.write(dice)


def verify_all(folder: Path, config: StoreConfig) -> str:
    """What `onelog store verify` finds is nothing; the state in which the store was left."""
    slots, entries = config.index_slots, config.index_entries
    verified = verify(folder, index_slots=slots, index_entries=entries)
    assert not verified.problems, f"verify says {verified.problems[:3]}"
    return verified.state


def look_over(folder: Path, config: StoreConfig, known: Acknowledged) -> None:
    """The last look at a store: recover, check, stop cleanly, verify every byte."""
    with MessageStore.open(folder, config, ManualClock(known.now_ms)) as store:
        Writer(store, ManualClock(), known, 1).check()
        if known.deleting:
            store.delete_topic(known.deleting)
    assert verify_all(folder, config) == "stopped"


def last_look(folder: Path, config: StoreConfig, known: Acknowledged) -> None:
    """`look_over`, in a child."""
    child, pipe = forked(lambda _: look_over(folder, config, known))
    os.close(pipe)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise RoundError(f"the last look ended with {status}")


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """A child that does the work; its process id, and the pipe that it tells its lines to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        os.close(reading)
        work(writing)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


@dataclass
class Tally:
    """What the rounds came to."""

    rounds: int = 0
    killed_while_opening: int = 0
    stopped: int = 0
    acknowledgements: int = 0
    deletions: int = 0


def one_round(
    folder: Path, config: StoreConfig, known: Acknowledged, dice: Random, tally: Tally
) -> None:
    """Fork, wait a moment, kill, and take down what was told."""
    seed = dice.random()
    child, pipe = forked(lambda out: live(folder, config, known, Random(seed), out))
    text = b""
    opened = dice.random() < 0.15  # These do not get the time to open.
    tally.killed_while_opening += opened
    deadline = time.monotonic() + (dice.random() * 0.02 if opened else OPEN_SECONDS_MAX)
    while (left_s := deadline - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left_s)[0]:
            continue
        more = os.read(pipe, 1 << 16)
        if not more:
            break
        text += more
        if not opened and b"open\n" in text:
            opened = True
            deadline = time.monotonic() + dice.random() * dice.choice(KILL_AFTER_S)
    os.kill(child, signal.SIGKILL)
    while more := os.read(pipe, 1 << 16):
        text += more
    os.close(pipe)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RoundError(f"the child ended with {status}")
    if not opened:
        raise RoundError(f"the store did not open within {OPEN_SECONDS_MAX:.0f} s")
    lines = text.decode().splitlines()
    for line in lines:
        known.take(line)
    tally.rounds += 1
    tally.stopped += status == 0
    tally.acknowledgements += sum(line.startswith("stored") for line in lines)
    tally.deletions += sum(line.startswith("deleted") for line in lines)


def run(folder: Path, rounds: int, seed: int) -> Tally:
    """So many rounds, over as many stores as that takes."""
    tally = Tally()
    for number in range(-(-rounds // ROUNDS_PER_STORE)):
        dice = Random(f"{seed} {number}")
        own = folder / f"store-{number}"
        config = settings(dice)
        known = Acknowledged()
        try:
            for _ in range(min(ROUNDS_PER_STORE, rounds - tally.rounds)):
                if dice.random() < 0.2:
                    config = replace(config, record_crc=not config.record_crc)
                one_round(own, config, known, dice, tally)
            last_look(own, config, known)
        except RoundError as error:
            raise RoundError(
                f"seed {seed}, store {number}, round {tally.rounds}, {config}: {error}"
            ) from None
        shutil.rmtree(own)
    return tally


if __name__ == "__main__":
    began = time.monotonic()
    done = run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(f"{done} in {time.monotonic() - began:.0f} s")
