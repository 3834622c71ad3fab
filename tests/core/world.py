"""A broker in a world that tests move by hand: its clock, its timers, its ticks, its crashes."""

import heapq
import itertools
import os
import queue
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from onelog.clock import ManualClock
from onelog.config import BrokerConfig, ReplicationConfig, StoreConfig
from onelog.core.access import SELF
from onelog.core.assembly import Assembly
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.fetch import Cursor, Limits, Result, allowed
from onelog.core.durable.durability import Durability, Post, Replicas
from onelog.core.durable.storage import Runtime
from onelog.core.durable.tables import Table
from onelog.core.durable.waiting import OpenWaits
from onelog.core.durable.writer import Writer
from onelog.core.stats import Stats
from onelog.errors import OnelogError, StoreFullError
from onelog.message import LOOPBACK, Appended, Message, NewMessage, encode_properties
from onelog.record.decode import decode_messages
from onelog.rocketmq.pop import Pop
from onelog.rocketmq.profile import NAMING, ROCKETMQ
from onelog.rocketmq.sent_properties import intent_of
from onelog.store.message_store import MessageStore
from onelog.store.reader import Fetched
from onelog.store.retention import RetentionRound

TROUBLES = (StoreFullError("disk is full"), OSError(24, "Too many open files"), KeyError("a bug"))
"""What a background job may meet, and has to survive."""
HELD_S_MAX = 0.05
"""What a callback may compute in tests. The aim is 20 ms; not every machine is a fast one."""
SMALL_STORE = StoreConfig(
    segment_bytes=1 << 20,
    queue_file_entries=1_000,
    index_slots=1_000,
    index_entries=4_000,
    # Nothing is flushed in the middle of a test that did not ask for it, however long it takes.
    flush_interval_ms=60_000,
    flush_thorough_ms=600_000,
    checkpoint_interval_ms=600_000,
)


def entries_of(table: Table) -> dict[str, Any]:
    """All entries of a table, whatever parts it has them in."""
    found: dict[str, Any] = {}
    for part in table.parts():
        if isinstance(part, list):
            found |= msgspec.json.decode(b"{%b}" % b"".join(part))
        else:
            found |= part or {}
    return found


class ManualTimer:
    """Timers that fire when the clock is moved past them, in the order of their due times."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.longest_cpu_s = 0.0
        """What the longest callback has computed: how long it would have held an event loop."""
        self._elsewhere_s = 0.0

    def __len__(self) -> int:
        return len(self._timers)

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> None:
        due_ms = self._clock.now_ms() + delay_ms
        heapq.heappush(self._timers, (due_ms, next(self._order), callback))

    def offload(self, work: Callable[[], None]) -> None:
        """Do at once what a worker would do; it counts for nobody."""
        began = time.thread_time()
        work()
        self._elsewhere_s += time.thread_time() - began

    def measured(self, callback: Callable[[], None]) -> None:
        """Make a call, and see how long it takes."""
        began, elsewhere = time.thread_time(), self._elsewhere_s
        callback()
        held_s = time.thread_time() - began - (self._elsewhere_s - elsewhere)
        self.longest_cpu_s = max(self.longest_cpu_s, held_s)

    def advance(self, ms: int) -> None:
        """Move the clock, stopping at each timer on the way."""
        end_ms = self._clock.now_ms() + ms
        while self._timers and self._timers[0][0] <= end_ms:
            due_ms, _, callback = heapq.heappop(self._timers)
            self._clock.advance(max(0, due_ms - self._clock.now_ms()))
            self.measured(callback)
        self._clock.advance(end_ms - self._clock.now_ms())


def plain_runtime(
    clock: ManualClock,
    timer: ManualTimer | None = None,
    post: Post = lambda call: call(),
) -> Runtime:
    """A runtime for parts that are tested without a broker."""
    schedule = (ManualTimer(clock) if timer is None else timer).schedule
    return Runtime(clock, schedule, lambda call: None, post, Random(7))


def plain_writer(store: MessageStore, clock: ManualClock) -> Writer:
    """A writer for parts that are tested without a broker; nobody ends its ticks."""
    runtime = plain_runtime(clock)
    durability = Durability(store, runtime, immediate=True)
    waiting = OpenWaits(clock, runtime.schedule)
    return Writer(store, durability, waiting, Stats(clock, "c"), lambda call: None)


_BEING_DELETED = shutil.ignore_patterns("deleted-*")
"""What a thread is deleting may go while it is copied."""


@dataclass(frozen=True)
class Told:
    """What `on_stored` was called with."""

    token: Any
    appended: Any
    error: OnelogError | None


@dataclass
class World:
    """A store folder, and the broker over it, through restarts and crashes."""

    folder: Path
    store_config: StoreConfig = SMALL_STORE
    broker_config: BrokerConfig = field(default_factory=BrokerConfig)
    clock: ManualClock = field(default_factory=ManualClock)
    memory_bytes: int = 1 << 30
    seconds: float = 0.0
    """What the broker measures short spans with; it stands still, too."""
    replication: ReplicationConfig | None = None
    replicas: Replicas | None = None
    gated: bool = False
    follower: bool = False

    def __post_init__(self) -> None:
        self._crashes = itertools.count(1)
        self.told: list[Told] = []
        self.begin_ms = self.clock.now_ms()
        self.start()

    def start(self) -> None:
        self.timer = ManualTimer(self.clock)
        self.soon: list[Callable[[], None]] = []
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.store = MessageStore.open(self.folder, self.store_config, self.clock, gated=self.gated)
        if self.gated and not self.follower:
            self.store.tail.confirm(self.store.log_end)
        self.start_core()

    def start_core(self) -> None:
        """Open a broker over the store as it is."""
        self.core = Assembly(
            self.broker_config,
            self.store,
            Runtime(
                clock=self.clock,
                schedule=self.timer.schedule,
                call_soon=self.soon.append,
                post=self.posted.put,
                offload=self.timer.offload,
                random=Random(7),
                memory_bytes=self.memory_bytes,
                seconds=lambda: self.seconds,
            ),
            naming=NAMING,
            replication=self.replication,
            replicas=self.replicas,
        )
        self.broker = self.core.broker
        self.pop = Pop(self.core, Random(7), LOOPBACK)
        if self.follower:
            self.core.open(follower=True, master="10.0.0.5:10911")
        else:
            self.core.open(ROCKETMQ)

    def close(self) -> None:
        self.core.close()
        self.store.close()

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.close()
        self.start()

    def crash(self) -> None:
        """Go on with the folder as it is at this moment, as after SIGKILL."""
        first = self.folder.name.partition("-crash-")[0]
        copy = self.folder.with_name(f"{first}-crash-{next(self._crashes)}")
        shutil.copytree(self.folder, copy, ignore=_BEING_DELETED)
        self.store.close()
        self.folder = copy
        self.start()

    def power_loss(self) -> None:
        """Go on with what the disk has for sure: the log up to its last flush, and other files."""
        flushed = int(self.store.log.flushed)
        first = self.folder.name.partition("-crash-")[0]
        copy = self.folder.with_name(f"{first}-crash-{next(self._crashes)}")
        shutil.copytree(self.folder, copy, ignore=_BEING_DELETED)
        self.store.close()
        for path in (copy / "commitlog").iterdir():
            size, start = path.stat().st_size, int(path.name)
            if flushed < start + size:
                os.truncate(path, max(0, flushed - start))
                os.truncate(path, size)
        self.folder = copy
        self.start()

    def retain(self, *, manual: bool = True) -> RetentionRound:
        """A round of retention, as the server does it, and all that has to come before it."""
        for _ in range(2):  # What the first one moves is on disk for the second one.
            self.core.prepare_retention()
            assert self.store.wait_flushed(self.store.log_end)
        topics = self.core.topics
        return self.store.retention.run(
            topics.retention_ms(), topics.retention_bytes(), manual=manual
        )

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.timer.advance(ms)

    def end_tick(self) -> None:
        """What the event loop does at the end of a tick."""
        soon, self.soon[:] = list(self.soon), []
        for callback in soon:
            self.timer.measured(callback)

    def run_posted(self, count: int = 1, timeout_s: float = 60.0) -> None:
        """Wait for other threads to hand over `count` calls, and make them."""
        for _ in range(count):
            self.posted.get(timeout=timeout_s)()

    # -- what tests do all the time -------------------------------------------------------------

    def topic(self, name: str = "orders", queues: int = 4, **settings: Any) -> TopicConfig:
        config = TopicConfig(name, queues, queues, **settings)
        self.broker.topics.create(SELF, config)
        return config

    def on_stored(self, token: Any, appended: Any, error: OnelogError | None) -> None:
        self.told.append(Told(token, appended, error))

    def publish(self, message: NewMessage, token: Any = None) -> None:
        """What RocketMQ's gateway does with a message, which says in properties what it is for."""
        intent = intent_of(message.properties, self.clock)
        self.broker.publish.send(SELF, message, self.on_stored, token, intent)

    def send(
        self, topic: str = "orders", queue_id: int = 0, body: bytes = b"x", **properties: str
    ) -> Appended:
        """One message, stored and acknowledged in a tick of its own."""
        message = NewMessage(
            topic, queue_id, body, encode_properties(properties), born_ms=self.clock.now_ms()
        )
        self.publish(message)
        self.end_tick()
        told = self.told.pop()
        assert told.error is None
        assert isinstance(told.appended, Appended)
        return told.appended

    def fill(self, topic: str, queue_id: int, count: int) -> None:
        """Messages that somebody can have a position behind."""
        self.store.append([NewMessage(topic, queue_id, b"x")] * count)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A commit of a group, which is made if it is the first."""
        self.core.groups.require(group)
        self.broker.cursors.commit(SELF, group, topic, queue_id, offset)

    def pull(self, offset: int, topic: str = "orders", queue_id: int = 0, **how: Any) -> Fetched:
        """A fetch of one cursor that does not wait for messages, as a RocketMQ pull makes it."""
        names = ("count_max", 32), ("bytes_max", 0), ("bulk_bytes", 0), ("unconverted", False)
        sizes = [how.pop(name, usual) for name, usual in names]
        cursor = Cursor(how.pop("group", "readers"), topic, queue_id, offset, **how)
        ((result,),) = self.fetch([cursor], allowed(self.broker.admin.config, *sizes), 0)
        if isinstance(result, OnelogError):
            raise result
        return result

    def fetch(
        self, cursors: Sequence[Cursor], limits: Limits, wait_ms: int = 60_000, owner: Any = None
    ) -> list[Sequence[Result]]:
        """What `on_fetched` was called with; for a fetch that is held, what it will be."""
        answers: list[Sequence[Result]] = []
        self.broker.cursors.fetch(
            SELF, cursors, limits, wait_ms, lambda to, found: to.append(found), owner, answers
        )
        return answers

    def messages(self, topic: str, queue_id: int = 0) -> list[Message]:
        """Everything in a queue."""
        end = self.store.max_offset(topic, queue_id)
        start = self.store.min_offset(topic, queue_id)
        return self.store.messages(topic, queue_id, start, end - start)

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [bytes(message.body) for message in self.messages(topic, queue_id)]


def pulled(result: Fetched) -> list[bytes]:
    """The bodies in a pull's answer."""
    return [bytes(each.body) for part in result.slices for each in decode_messages(part)]


def cut(world: World, records: int) -> None:
    """Cut the log off, as a crash may do: so many of its last records never reached the disk."""
    store = world.store
    at, places = int(store.log_min), []
    while at < store.log_end:
        places.append(at)
        at += store.message_at(at).size
    end = places[-records]
    segment = store.log.segment_at(end)
    with open(segment.path, "r+b") as file:
        file.seek(end - segment.start)
        file.write(bytes(int(store.log_end) - end))
