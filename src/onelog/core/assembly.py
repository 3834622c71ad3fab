"""The parts of a broker: how they are wired, opened, kept going and closed.

What gateways do with them, they do through `broker`, which knows nothing of this.

Invariant: between `open` and `close` everything runs in one thread. Clock, timers, randomness and
the way back from other threads come in as arguments, so that a simulation can be in their place.
"""

import logging
import time
from collections.abc import Callable, Generator, Hashable
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from onelog.clock import Clock
from onelog.config import BrokerConfig, ReplicationConfig
from onelog.core.admin import Admin
from onelog.core.broker import Broker
from onelog.core.catalog.groups import Groups
from onelog.core.catalog.names import Naming
from onelog.core.catalog.topic_catalog import TopicCatalog
from onelog.core.catalog.topics import Texts, Topics, TopicTexts
from onelog.core.compaction.compactor import Compaction
from onelog.core.cursors.cold_reads import ColdReads
from onelog.core.cursors.cursors import Cursors
from onelog.core.cursors.fetch import Fetches
from onelog.core.cursors.forms import MarkedTopics
from onelog.core.cursors.offsets import Offsets, machine_memory_bytes
from onelog.core.cursors.pending_reads import PendingReads
from onelog.core.cursors.reading import QueueReader
from onelog.core.cursors.starts import QueueStarts
from onelog.core.durable.deadlines import Schedule
from onelog.core.durable.durability import Durability, Post, Replicas
from onelog.core.durable.tables import (
    LEASES_TOPIC,
    Change,
    Table,
    Tables,
    Versions,
    exhausted,
)
from onelog.core.durable.waiting import Key, OpenWaits
from onelog.core.durable.writer import Writer
from onelog.core.filters.filter_time import FilterTime
from onelog.core.membership.assignment import RequestModes
from onelog.core.membership.coordinator import Coordinator
from onelog.core.membership.group_membership import GroupMembership
from onelog.core.membership.locks import Locks
from onelog.core.membership.members import Members
from onelog.core.publish import Publisher
from onelog.core.queues.journal import LEASES_FILE
from onelog.core.queues.leases import Leases
from onelog.core.queues.lending import Lending
from onelog.core.queues.queues import WorkQueues
from onelog.core.queues.receiving import Receiving
from onelog.core.queues.retention_holds import RetentionHolds
from onelog.core.queues.retry import Retry
from onelog.core.queues.sharing import Sharing
from onelog.core.routing.mqtt_forwarding import MqttForwarding
from onelog.core.routing.publishing import Publishing
from onelog.core.routing.routing import Routing
from onelog.core.routing.topology import Topology
from onelog.core.schedule.levels import Delay
from onelog.core.schedule.renewal import CHECK_MS, TimerRenewal
from onelog.core.schedule.schedules import Schedules
from onelog.core.schedule.timers import WATCH_MS, Timers
from onelog.core.sessions.retained import Retained
from onelog.core.sessions.sessions import PacketIds, Sessions
from onelog.core.stats import Stats
from onelog.core.transactions.branches import Branches
from onelog.core.transactions.checkback import CheckBack
from onelog.core.transactions.half import HalfMessages
from onelog.core.transactions.prepared_batches import PreparedBatches
from onelog.core.transactions.producers import BatchProducers
from onelog.core.transactions.staged import StagedParts, StagedTransactions
from onelog.core.transactions.transactional_ids import TransactionalIds
from onelog.core.transactions.transactions import Transactions
from onelog.core.users.audit import Audit
from onelog.core.users.keys import KEY_FILE, Keys
from onelog.core.users.logins import Logins
from onelog.core.users.users import Users
from onelog.errors import NotMasterError, OnelogError
from onelog.jobs import Job
from onelog.message import LOOPBACK
from onelog.names import SCHEDULE_TOPIC, TIMER_TOPIC
from onelog.record.dispatch import parse_delay_levels
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

SAMPLE_MS = 10_000
_MORE_MS = 1
"""Between the parts of a job that is too long to be done at once."""


class Predecessor(NamedTuple):
    """Whoever may have written a store before: what it left is taken over once."""

    tables: Callable[[Path], list[Change]]
    """What its config files say, in a folder."""
    leases: Callable[["Assembly"], None]
    """Leases here what it had handed out."""


class Assembly:
    """All parts of one broker, over one store."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        *,
        clock: Clock,
        schedule: Schedule,
        call_soon: Callable[[Callable[[], None]], None],
        post: Post,
        random: Random,
        naming: Naming,
        users: Users | None = None,
        offload: Callable[[Callable[[], None]], None] = lambda work: work(),
        store_host: bytes = LOOPBACK,
        memory_bytes: int | None = None,
        seconds: Callable[[], float] = time.perf_counter,
        replication: ReplicationConfig | None = None,
        replicas: Replicas | None = None,
        keys: Keys | None = None,
    ) -> None:
        """`call_soon` ends a tick, `post` comes back from a thread, `offload` runs slow work.

        `seconds` is a clock that never goes back, for what lasts less than a millisecond.
        `replicas` are those of a master that has some; `keys` are in the store if none are given.
        """
        self.config = config
        self.replication = replication or ReplicationConfig()
        self.store = store
        self.clock, self._timer = clock, schedule
        self._closed = False
        self._is_gone = False
        """Whether nothing is to happen any more: the store is another core's."""
        self._early: list[Callable[[], None]] | None = []
        """What is due while the log is still read: it would act on half of what is known."""
        self.follows = False
        """Whether another broker writes the log."""
        self._needed_from_on_disk = 0
        self.naming = naming
        self.users = self.access = users or Users()
        self._wire_writing(call_soon, post, offload, replicas)
        self.keys = keys or Keys(store.folder / "config" / KEY_FILE)
        self.users.use(self.tables, self.keys)
        self.audit = self.access.audit = Audit(store.folder / "audit", clock, offload)
        self.logins = Logins(self.users, clock, self._schedule, offload, post, self.keys)
        self.users.logins = self.logins
        self._wire_catalog()
        self.members = Members(clock, config.client_expiry_ms)
        self.offsets = Offsets(self.tables, store, memory_bytes or machine_memory_bytes())
        self.starts = QueueStarts(self.tables, store, self.topics)
        self.locks = Locks(clock, config.lock_expiry_ms)
        self.retry = Retry(self.groups, self.topics, self.locks, clock, random, store_host)
        self.cold_reads = ColdReads(store, offload, post)
        self._wire_fetches(call_soon, seconds)
        self._wire_delays(offload, store_host)
        self._wire_the_rest(random, call_soon, offload, store_host)

    def _wire_the_rest(
        self,
        random: Random,
        call_soon: Callable[[Callable[[], None]], None],
        offload: Callable[[Callable[[], None]], None],
        store_host: bytes,
    ) -> None:
        self._wire_transactions(store_host)
        self.publisher: Publisher = Publisher(self, random)
        self.batch_producers.use(self.publisher)
        self._wire_staged(call_soon)
        self._wire_leases(offload)
        self._wire_routing(random, call_soon, store_host)
        self.sessions = Sessions(self.tables, self.clock)
        self.retained = Retained(self.tables, self.writer, self.durability.when_safe)
        self.packet_ids = PacketIds(self.lease_tables, self.writer, self.durability.when_safe)
        topics = TopicCatalog(self)
        groups = GroupMembership(self, topics)
        self._wire_groups(groups, lambda: f"{random.getrandbits(128):032x}")
        self._wire_workqueues(random, call_soon, store_host, topics)
        self.publisher.routing, self.publisher.schedules = self.routing, self.schedules
        self.publisher.see_message = topics.seen_message
        self.broker = Broker(
            topics,
            groups,
            Receiving(self),
            Cursors(self),
            self.publisher,
            Transactions(self),
            self.users,
            Admin(self),
        )
        groups.on_channel_closed += (
            self.pending_reads.owner_gone,
            self.staged.owner_gone,
            self.routing.owner_gone,
            self._left,
            self.members.channel_closed,
        )
        self.users.on_change.append(self._users_changed)

    def _left(self, owner: Hashable) -> None:
        for _ in self.workqueues.leaving(owner):
            pass

    def _users_changed(self) -> None:
        self.routing.guard(not self.users.is_open)

    def _schedule(self, wait_ms: int, callback: Callable[[], None]) -> None:
        """Call back then, but not before everything is remembered.

        Nor if another core has the store by then.
        """
        self._timer(wait_ms, lambda: self._time_has_come(callback))

    def _time_has_come(self, callback: Callable[[], None]) -> None:
        if self._early is not None:
            self._early.append(callback)
        elif not self._is_gone:
            callback()

    def _wire_writing(
        self,
        call_soon: Callable[[Callable[[], None]], None],
        post: Post,
        offload: Callable[[Callable[[], None]], None],
        replicas: Replicas | None,
    ) -> None:
        store, clock, replication = self.store, self.clock, self.replication
        self.stats = Stats(clock, self.config.cluster)
        self.waiting = OpenWaits(clock, self._schedule)
        is_wanted = replication.ack != "local" or bool(replication.etcd)
        self.durability = Durability(
            store, clock, self._schedule, post, immediate=store.config.flush != "sync",
            timeout_ms=self.config.flush_timeout_ms, replicas=replicas,
            replicates=replicas is not None and is_wanted,
            replicas_timeout_ms=replication.timeout_ms,
        )  # fmt: skip
        self.writer = Writer(store, self.durability, self.waiting, self.stats, call_soon)
        self.tables = Tables(
            store, self.writer, store.folder / "config", clock, offload,
            restates=replication.is_on,
        )  # fmt: skip

    def _wire_catalog(self) -> None:
        self.versions = Versions(self.clock)
        self.topics = Topics(self.tables, self.versions, self.naming, self.config)
        self.placements = TopicTexts("placements", self.tables, self.topics)
        self.schemas = TopicTexts("schemas", self.tables, self.topics)
        self.kafka_settings = Texts("kafka_settings", self.tables)
        """What the bodies of topics are, for who looks at them."""
        self.marked = MarkedTopics(self.tables, self.topics)
        self.groups = Groups(self.tables, self.versions, self.naming, self.config)

    def _wire_groups(self, groups: GroupMembership, new_id: Callable[[], str]) -> None:
        self.coordinator = Coordinator(
            self.access, self.config.name, self.clock, self._schedule, new_id, self.tables,
            self.topics, self.groups, self.members, self.offsets, groups, self.durability.when_safe,
        )  # fmt: skip
        groups.coordinator = self.coordinator
        self.coordinator.require_current = self.durability.require_current
        self.in_place = TransactionalIds(
            self.access, self.clock, self._schedule, self.tables, self.topics, self.writer,
            self.batch_producers, self.coordinator, self.waiting.arrived, self.durability.when_safe,
        )  # fmt: skip
        self.sharing: Sharing = Sharing(
            self.access, self.store, self.topics, self.groups, self.offsets, self.leases,
            self.lending,
        )  # fmt: skip
        self.coordinator.shares.on_lost = self.leases.release_held
        self.branches: Branches = Branches(
            self.access, self.tables, self.topics, self.batch_producers, self.coordinator,
            self.in_place,
        )  # fmt: skip

    def _wire_fetches(
        self, call_soon: Callable[[Callable[[], None]], None], seconds: Callable[[], float]
    ) -> None:
        config = self.config
        self.batch_producers = BatchProducers(
            self.tables,
            self.store,
            self.topics,
            self.marked,
            self.clock,
            self.writer,
            self.durability,
        )
        self.filter_time = FilterTime(
            call_soon, seconds, self.waiting.arrived, config.filter_budget_ms
        )
        self.compaction = Compaction(
            self.tables, self.store, self.topics, self.marked, self.starts, self.batch_producers,
            self.writer, self.clock, self._schedule, self.cold_reads,
        )  # fmt: skip
        self.reader = QueueReader(
            self.store, self.clock, self.filter_time, config.pull_cold_count_max,
            config.pull_cold_bytes_max, self.marked.names, self.batch_producers,
            self.compaction.compacted,
        )  # fmt: skip
        self.pending_reads = PendingReads(
            self.reader, self.waiting, self.cold_reads, self.filter_time, self.clock
        )
        self.fetches = Fetches(
            self.store, self.reader, self.pending_reads, self.topics, self.groups, self.offsets,
            self.stats, self.clock, lambda: self.config, is_current=self.durability.is_current,
        )  # fmt: skip

    def _wire_delays(self, offload: Callable[[Callable[[], None]], None], host: bytes) -> None:
        store, clock, schedule = self.store, self.clock, self._schedule
        levels_ms = parse_delay_levels(store.config.delay_levels)
        self.delay = Delay(
            self.tables, store, self.writer, clock, schedule, levels_ms, self.cold_reads
        )
        self.timers = Timers(
            self.tables, store, self.writer, clock, schedule, offload, self.cold_reads, host
        )
        self.timers.delay_max_ms = self.config.timer_delay_max_ms
        self.timer_renewal = TimerRenewal(
            self.timers, store, self.writer, clock, schedule, self.cold_reads
        )

    def _wire_transactions(self, store_host: bytes) -> None:
        store, clock, config = self.store, self.clock, self.config
        self.transactions = HalfMessages(
            self.tables, store, self.topics, self.offsets, self.writer, clock,
            config.transaction_timeout_ms, store_host,
        )  # fmt: skip
        self.checkback = CheckBack(
            self.transactions, store, self.topics, self.members, self.writer, clock,
            self._schedule, self.cold_reads, config.transaction_check_max,
        )  # fmt: skip

    def _wire_staged(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        store, clock = self.store, self.clock
        parts = StagedParts(self.tables, store, self.writer, clock)
        self.staged: StagedTransactions = StagedTransactions(
            parts, store, self.topics, self.publisher, self.durability, clock, self.cold_reads,
            self._schedule,
        )  # fmt: skip
        self.prepared_batches: PreparedBatches = PreparedBatches(
            self.tables, store, self.topics, parts, self.publisher, self.durability, clock,
            self._schedule, call_soon, self.cold_reads,
        )  # fmt: skip

    def _wire_leases(self, offload: Callable[[Callable[[], None]], None]) -> None:
        store, topics, groups = self.store, self.topics, self.groups
        self.request_modes = RequestModes(self.tables, topics, groups, lambda: self.config)
        self.lease_tables = Tables(
            store, self.writer, store.folder / "config", self.clock, offload,
            topic=LEASES_TOPIC, file=LEASES_FILE, snapshot_records=20_000,
            restates=self.replication.is_on,
        )  # fmt: skip
        self.leases = Leases(
            self.lease_tables, store, topics, groups, self.offsets, self.reader, self.writer,
            self.waiting, self.clock, self._schedule,
            self.cold_reads, self.durability.when_safe,
        )  # fmt: skip
        self.lending = Lending(
            self.leases,
            self.pending_reads,
            self.waiting,
            self.stats,
            self.clock,
            lambda: self.config,
        )

    def _wire_routing(
        self, random: Random, call_soon: Callable[[Callable[[], None]], None], host: bytes
    ) -> None:
        self.topology = Topology(
            self.tables, random, lambda name: self.topics.get(name) is not None
        )
        self.publishing = Publishing(
            self.topology, self.writer, self.topics, self.marked, self.timers, self.staged,
            self.clock, host, self.config.routed_body_bytes_max, call_soon,
        )  # fmt: skip
        self.routing: Routing = Routing(self.access, self.topology, self.publishing, random)
        self.schedules: Schedules = Schedules(
            self.tables, self.routing, self.clock, self._schedule, random, self.durability.when_safe
        )
        self.mqtt_forwarding: MqttForwarding = MqttForwarding(
            self.access, self.tables, self.topics, self.writer, self.routing, self.cold_reads,
            self._schedule,
        )  # fmt: skip

    def _wire_workqueues(
        self,
        random: Random,
        call_soon: Callable[[Callable[[], None]], None],
        host: bytes,
        topics: TopicCatalog,
    ) -> None:
        self.workqueues: WorkQueues = WorkQueues(
            self.access, self.tables, self.lease_tables, self.store, self.writer, self.topics,
            topics, self.routing, self.reader, self.cold_reads, self.clock, self._schedule,
            call_soon, lambda: f"{random.getrandbits(128):032x}", self.durability.when_safe,
            lambda: self.config,
        )  # fmt: skip
        self.retention_holds: RetentionHolds = RetentionHolds(
            self.store, self.workqueues.ledgers, self.workqueues.declared,
            self.workqueues.queue_of_topic, self.writer, self.cold_reads, host,
        )  # fmt: skip

    # -- life ----------------------------------------------------------------------------------

    def open(
        self, predecessor: Predecessor | None = None, *, follower: bool = False, master: str = ""
    ) -> None:
        """Remember everything, and start the jobs that time drives.

        A `follower` knows what its log says, as far as that is confirmed, and writes nothing; what
        it is asked to write is `master`'s to write. Whoever is to be master has a log that is
        confirmed to its end.
        """
        exhausted(self.opening(predecessor, follower=follower, master=master))

    def opening(
        self, predecessor: Predecessor | None = None, *, follower: bool = False, master: str = ""
    ) -> Generator[None, None, None]:
        """`open` in steps, for a node that has to keep its lease meanwhile."""
        self._add_tables()
        if follower:
            yield from self._open_follower(master)
        else:
            assert self.store.confirmed == self.store.log_end
            self.store.tail.drop_partial()  # What waits for more to go by is entered now.
            yield from self._open_master(predecessor)
        early, self._early = self._early or (), None
        for callback in early:
            self._schedule(0, callback)

    def _add_tables(self) -> None:
        kept: tuple[Table, ...] = (
            self.versions, self.topics, self.groups, self.offsets, self.delay, self.timers,
            self.transactions, self.request_modes, self.staged, self.prepared_batches, self.marked,
            self.batch_producers, self.coordinator, self.coordinator.notes, self.coordinator.uses,
            self.in_place, self.starts, self.compaction, self.placements, self.schemas,
            self.kafka_settings, self.branches,
            *self.topology.tables, self.workqueues.declared, self.workqueues.policies,
            self.schedules, self.schedules.times,
            self.sessions, self.sessions.subscriptions, self.retained, self.mqtt_forwarding,
        )  # fmt: skip
        for table in kept:
            self.tables.add(table)
        self.lease_tables.add(self.leases)
        self.lease_tables.add(self.packet_ids)
        self.lease_tables.add(self.workqueues.ledgers)

    def _open_follower(self, master: str) -> Generator[None, None, None]:
        self.follows = self.broker.admin.is_follower = True
        self.master_is(master)
        self.topics.follows = self.groups.follows = self.fetches.follows = True
        self.leases.follow()
        self.workqueues.ledgers.follows = True
        self.timers.forget_files()
        for stop in self._stops:
            stop()
        yield from self.tables.opening()
        yield from self.lease_tables.opening()
        yield from self.batch_producers.opening()
        self.topics.add_system()
        self.groups.add_system()
        config = self.config
        self._every(config.client_scan_ms, self._expire, "dropping silent clients")
        self._every(SAMPLE_MS, self.stats.tick, "counting")
        self._every(SAMPLE_MS, self.tables.snapshot_if_due, "writing a snapshot of the tables")
        self._every(SAMPLE_MS, self.lease_tables.snapshot_if_due, "writing a snapshot of leases")
        self._keep_what_is_needed()

    def _open_master(self, predecessor: Predecessor | None) -> Generator[None, None, None]:
        if (yield from self.tables.opening()):
            predecessor = None  # What it left was taken over long ago.
        if predecessor is not None:
            self.tables.write(predecessor.tables(self.store.folder / "config"))
            self.tables.snapshot(wait=True)
        if self.users.encrypt_secrets():
            self.tables.snapshot(wait=True)
        self.staged.open()  # These two first: they may have to complete what a crash cut off.
        self.prepared_batches.open()
        yield from self.batch_producers.opening()
        self.compaction.open()
        self.coordinator.open()
        self.sessions.open()
        self.in_place.open()
        self.offsets.come_back()
        self.topics.add_system()
        self.groups.add_system()
        self.delay.open()
        self.transactions.open()
        yield from self.lease_tables.opening()
        if predecessor is not None:
            self.timers.open()  # It may have leases that wait there, and has no declared queues.
            predecessor.leases(self)
        self.leases.open()
        self.workqueues.open()
        if predecessor is None:
            self.timers.open()  # What is due may be for queues, which have to be there.
        self.schedules.open()
        self.mqtt_forwarding.open()
        config = self.config
        self._every(config.offsets_flush_ms, self.offsets.flush_some, "recording positions")
        self._every(config.client_scan_ms, self._expire, "dropping silent clients")
        self._every(SAMPLE_MS, self.stats.tick, "counting")
        self._every(SAMPLE_MS, self.staged.expire, "aborting old transactions")
        self._every(SAMPLE_MS, self.workqueues.look_after, "looking after declared queues")
        self._every(SAMPLE_MS, self.in_place.expire, "looking after transactions in place")
        self._every(SAMPLE_MS, self.coordinator.expire, "forgetting groups that nobody uses")
        self._every(SAMPLE_MS, self.prepared_batches.expire, "forgetting old queries")
        self._every(SAMPLE_MS, self.batch_producers.keep, "recording producers' numbers")
        self._every(SAMPLE_MS, self.tables.snapshot_if_due, "writing a snapshot of the tables")
        self._every(SAMPLE_MS, self.lease_tables.snapshot_if_due, "writing a snapshot of leases")
        if self.tables.restates:
            self._every(SAMPLE_MS, self.tables.restate_some, "recording the tables anew")
            self._every(SAMPLE_MS, self.lease_tables.restate_some, "recording leases anew")
        self._every(
            lambda: self.config.transaction_check_interval_ms, self.checkback.check,
            "asking about open transactions",
        )  # fmt: skip
        self._every(WATCH_MS, self.timers.watch, "watching timed messages")
        self._every(CHECK_MS, self.timer_renewal.check, "renewing timed messages")
        self._every(config.compaction_interval_ms, self.compaction.check, "compacting queues")
        self._keep_what_is_needed()

    def _every(
        self, period_ms: int | Callable[[], int], work: Callable[[], object], name: str
    ) -> None:
        """Do some work again and again; at once if it says True, because there is more of it."""
        job = Job(name)
        period = period_ms if callable(period_ms) else lambda: period_ms

        def run() -> None:
            if self._closed:
                return
            more: object = False
            with job:
                more = work()
            self._schedule(_MORE_MS if more is True else period(), run)

        self._schedule(period(), run)

    def _expire(self) -> bool:
        """True if there may be more who are gone."""
        self.locks.expire()
        silent = self.members.expire()
        for channel in silent:
            for listener in self.broker.groups.on_channel_expired:
                listener(channel)
        return bool(silent)

    def close(self, *, write: bool = True) -> None:
        """Write what is still in memory, all that can be. The store is its owner's to close.

        A follower writes nothing, nor does a master that is one no more (`write` is False).
        """
        if self._closed:
            return
        self._closed = True
        if self.follows or not write:
            self._is_gone = True
            self.fence()
            parts: tuple[Callable[[], None], ...] = (
                *self._stops, self.waiting.end_all, self.leases.stop,
                self.workqueues.stop,
                partial(self.lease_tables.close, write=False),
                partial(self.tables.close, write=False),
            )  # fmt: skip
        else:
            parts = self._close_order
        for part in parts:
            try:
                part()
            except OnelogError as error:
                log.error("a part of the broker was not closed cleanly: %s", error)
            except Exception:
                log.exception("a part of the broker was not closed cleanly")

    @property
    def _stops(self) -> tuple[Callable[[], None], ...]:
        """What ends all that would be written by itself."""
        return (
            self.compaction.close, self.delay.close, self.timers.stop, self.checkback.close,
            self.prepared_batches.close, self.in_place.stop, self.schedules.close,
        )  # fmt: skip

    @property
    def _close_order(self) -> tuple[Callable[[], None], ...]:
        return (
            self.compaction.close, self.delay.close, self.schedules.close,
            self.writer.end_of_tick, self.timers.close,
            self.waiting.end_all, self.checkback.close, self.prepared_batches.close,
            self.transactions.remember, self.workqueues.close, self.leases.close,
            self.lease_tables.close,
            self.offsets.flush, self.batch_producers.close, self.tables.close,
        )  # fmt: skip

    def flush(self) -> None:
        """Write what is only in memory, before another broker is to go on with the log."""
        self.offsets.flush()
        self.batch_producers.close()
        self.transactions.remember()
        self.leases.flush()
        self.workqueues.ledgers.flush()

    # -- replication ---------------------------------------------------------------------------

    def master_is(self, address: str) -> None:
        """Of a follower: who is to be asked for what it does not do; empty if nobody is there.

        Groups are one broker's to serve: while there is a master, they are not served here.
        """
        reason = f"this broker follows another one: {address} is the master"
        if not address:
            reason = "this broker is not the master, and there is none now that it knows of"
        error = NotMasterError(reason)
        self.writer.refuse(error)
        self.durability.for_master = error if address else None

    def refuse_writes(self, reason: str | None) -> None:
        """Of a master that is to hand over: write nothing from now on; None: write again.

        Those who wait to be confirmed go on to wait.
        """
        self.writer.refuse(None if reason is None else NotMasterError(reason))

    def fence(self) -> None:
        """Of a master: acknowledge nothing from now on, and write nothing: another may be one."""
        error = NotMasterError("this broker may not be the master any more")
        self.writer.refuse(error)
        self.durability.refuse(error)

    def follow(self, touched: set[Key] | None) -> None:
        """Of a follower: more of its log is confirmed, in these queues, or in many."""
        if touched is None or (self.tables.topic, 0) in touched:
            self.tables.follow()
        if touched is None or (self.lease_tables.topic, 0) in touched:
            self.lease_tables.follow()
        self.batch_producers.follow(touched)
        self._wake(touched)

    def confirmed(self, touched: set[Key] | None) -> None:
        """Of a master: replicas have confirmed what was written to these queues, or to many."""
        if touched is None or (TIMER_TOPIC, 0) in touched:
            self.timers.arrived()
        for level in self.delay.levels:
            if touched is None or (SCHEDULE_TOPIC, level - 1) in touched:
                self.delay.arrived(level)
        self.workqueues.confirmed(touched)
        self._wake(touched)

    def _wake(self, touched: set[Key] | None) -> None:
        """There is something in these queues for those who wait."""
        if keys := self.waiting.keys:
            for topic, queue_id in list(keys) if touched is None else touched:
                self.waiting.arrived(topic, queue_id)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take over the settings that may change while the broker runs."""
        self.config = self.broker.admin.config = config
        self.groups.auto_create = config.auto_create_groups
        self.topics.reconfigure(config)
        self.reader.cold_count_max = config.pull_cold_count_max
        self.reader.cold_bytes_max = config.pull_cold_bytes_max
        self.filter_time.budget_ms = config.filter_budget_ms
        self.durability.timeout_ms = config.flush_timeout_ms
        self.publisher.body_bytes_max = self.store.config.body_bytes_max
        self.publishing.body_bytes_max = config.routed_body_bytes_max
        self.transactions.timeout_ms = config.transaction_timeout_ms
        self.timers.delay_max_ms = config.timer_delay_max_ms
        self.checkback.checks_max = config.transaction_check_max

    def prepare_retention(self, reach: int | None = None) -> None:
        """To be called before each round of `store.retain`: what goes is needed by nobody.

        What waits in files that should go is written anew, some at a time, and until that is on
        disk they are kept. `reach` is what `Retention.reach` says, if a worker has asked it.
        """
        if reach is None:
            reach = self.store.retention.reach(self.topics.retention_ms())
        if self.follows:
            self.compaction.learn_topics()
            self.tables.prepare_retention(reach, follows=True)
            self.lease_tables.prepare_retention(reach, follows=True)
            self._keep_what_is_needed()
            return
        if self.tables.restates:
            # Followers keep what they do not know to be delivered, or written anew.
            self.timers.remember(self.timer_renewal.free_below)
        self.checkback.prepare_retention(reach)
        self.timer_renewal.prepare_retention(reach)
        self.delay.prepare_retention(reach)
        self.compaction.prepare_retention(reach)
        self.retention_holds.prepare_retention(reach)
        self.tables.prepare_retention(reach)
        self.lease_tables.prepare_retention(reach)
        self._keep_what_is_needed()

    def _keep_what_is_needed(self) -> None:
        # A follower keeps what a master would need, by what its tables say.
        parts = (
            self.transactions if self.follows else self.checkback,
            self.timers if self.follows else self.timer_renewal,
            self.delay,
            self.staged,
            self.prepared_batches,
            self.tables,
            self.lease_tables,
            self.compaction,
            self.retention_holds,
        )
        needed_from = min(part.needed_from() for part in parts)
        # Where it moved to must survive a loss of power before where it was is deleted.
        self.store.retention.kept_from = min(needed_from, self._needed_from_on_disk)

        def flushed(error: OnelogError | None) -> None:
            if error is None:
                self._needed_from_on_disk = needed_from

        self.durability.when_on_disk(flushed)
