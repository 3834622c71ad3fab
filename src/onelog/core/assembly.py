"""The parts of a broker: how they are wired, opened, kept going and closed.

What gateways do with them, they do through `broker`, which knows nothing of this.

Invariant: between `open` and `close` everything runs in one thread. Clock, timers, randomness and
the way back from other threads come in as arguments, so that a simulation can be in their place.
"""

import logging
from collections.abc import Callable, Generator, Hashable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
from onelog.core.durable.durability import Durability, Replicas
from onelog.core.durable.storage import Runtime, Storage
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
        runtime: Runtime,
        *,
        naming: Naming,
        users: Users | None = None,
        replication: ReplicationConfig | None = None,
        replicas: Replicas | None = None,
        keys: Keys | None = None,
    ) -> None:
        """`replicas` are a master's, if it has some; `keys` are in the store if none are given."""
        self.config = config
        self.store = store
        self.clock, self._timer = runtime.clock, runtime.schedule
        self._closed = False
        self._is_gone = False
        """Whether nothing is to happen any more: the store is another core's."""
        self._early: list[Callable[[], None]] | None = []
        """What is due while the log is still read: it would act on half of what is known."""
        self.follows = False
        """Whether another broker writes the log."""
        self._needed_from_on_disk = 0
        self.naming = naming
        self._runtime = runtime = replace(runtime, schedule=self._schedule)
        self._storage = self._wire_storage(replication or ReplicationConfig(), replicas)
        self.users = self.access = users or Users()
        self._wire_users(keys or Keys(store.folder / "config" / KEY_FILE))
        self._wire_catalog()
        self._wire_reading()
        self._wire_publishing()
        self._wire_leases()
        self._wire_routing()
        topics = TopicCatalog(self)
        groups = GroupMembership(self, topics)
        self._wire_groups(groups)
        self._wire_workqueues(topics)
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

    def _wire_storage(self, replication: ReplicationConfig, replicas: Replicas | None) -> Storage:
        store, runtime = self.store, self._runtime
        self.stats = Stats(runtime.clock, self.config.cluster)
        self.waiting = OpenWaits(runtime.clock, runtime.schedule)
        is_wanted = replication.ack != "local" or bool(replication.etcd)
        self.durability = Durability(
            store,
            runtime,
            immediate=store.config.flush != "sync",
            timeout_ms=self.config.flush_timeout_ms,
            replicas=replicas,
            replicates=replicas is not None and is_wanted,
            replicas_timeout_ms=replication.timeout_ms,
        )
        self.writer = Writer(store, self.durability, self.waiting, self.stats, runtime.call_soon)
        self.tables = Tables(store, self.writer, runtime, restates=replication.is_on)
        self.lease_tables = Tables(
            store,
            self.writer,
            runtime,
            topic=LEASES_TOPIC,
            file=LEASES_FILE,
            snapshot_records=20_000,
            restates=replication.is_on,
        )
        self.cold_reads = ColdReads(store, runtime.offload, runtime.post)
        durability, waiting = self.durability, self.waiting
        return Storage(
            runtime, store, self.writer, durability, waiting, self.tables, self.cold_reads
        )

    def _wire_users(self, keys: Keys) -> None:
        self.keys, folder, runtime = keys, self.store.folder, self._runtime
        self.users.use(self.tables, keys)
        self.audit = self.access.audit = Audit(folder / "audit", runtime.clock, runtime.offload)
        self.logins = self.users.logins = Logins(self.users, runtime, keys)

    def _wire_catalog(self) -> None:
        runtime, clock = self._runtime, self.clock
        self.versions = Versions(clock)
        self.topics = Topics(self.tables, self.versions, self.naming, self.config)
        self.placements = TopicTexts("placements", self.tables, self.topics)
        self.schemas = TopicTexts("schemas", self.tables, self.topics)
        """What the bodies of topics are, for who looks at them."""
        self.kafka_settings = Texts("kafka_settings", self.tables)
        self.marked = MarkedTopics(self.tables, self.topics)
        self.groups = Groups(self.tables, self.versions, self.naming, self.config)
        self.members = Members(clock, self.config.client_expiry_ms)
        memory_bytes = runtime.memory_bytes or machine_memory_bytes()
        self.offsets = Offsets(self.tables, self.store, memory_bytes)
        self.starts = QueueStarts(self.tables, self.store, self.topics)
        self.locks = Locks(clock, self.config.lock_expiry_ms)
        self.retry = Retry(
            self.groups, self.topics, self.locks, clock, runtime.random, runtime.host
        )

    def _wire_reading(self) -> None:
        storage, topics, config = self._storage, self.topics, self.config
        self.batch_producers = BatchProducers(storage, topics, self.marked)
        self.filter_time = FilterTime(
            self._runtime.call_soon,
            self._runtime.seconds,
            self.waiting.arrived,
            config.filter_budget_ms,
        )
        self.compaction = Compaction(
            storage, topics, self.marked, self.starts, self.batch_producers
        )
        self.reader = QueueReader(
            self.store,
            self.clock,
            self.filter_time,
            config.pull_cold_count_max,
            config.pull_cold_bytes_max,
            self.marked.names,
            self.batch_producers,
            self.compaction.compacted,
        )
        self.pending_reads = PendingReads(
            self.reader, self.waiting, self.cold_reads, self.filter_time, self.clock
        )
        self.fetches = Fetches(
            storage,
            self.reader,
            self.pending_reads,
            topics,
            self.groups,
            self.offsets,
            self.stats,
            lambda: self.config,
        )

    def _wire_publishing(self) -> None:
        storage, topics, config = self._storage, self.topics, self.config
        self.delay = Delay(storage, parse_delay_levels(self.store.config.delay_levels))
        self.timers = Timers(storage)
        self.timers.delay_max_ms = config.timer_delay_max_ms
        self.timer_renewal = TimerRenewal(storage, self.timers)
        self.transactions = HalfMessages(
            storage, topics, self.offsets, config.transaction_timeout_ms
        )
        self.checkback = CheckBack(
            storage, self.transactions, topics, self.members, config.transaction_check_max
        )
        self.publisher: Publisher = Publisher(self, self._runtime.random)
        self.batch_producers.use(self.publisher)
        parts = StagedParts(storage)
        self.staged: StagedTransactions = StagedTransactions(storage, parts, topics, self.publisher)
        self.prepared_batches: PreparedBatches = PreparedBatches(
            storage, parts, topics, self.publisher
        )

    def _wire_leases(self) -> None:
        topics, groups = self.topics, self.groups
        self.request_modes = RequestModes(self.tables, topics, groups, lambda: self.config)
        self._lease_storage = replace(self._storage, tables=self.lease_tables)
        self.leases = Leases(self._lease_storage, topics, groups, self.offsets, self.reader)
        self.lending = Lending(self.leases, self.pending_reads, self.stats, lambda: self.config)

    def _wire_routing(self) -> None:
        storage, topics, random = self._storage, self.topics, self._runtime.random
        self.topology = Topology(self.tables, random, lambda name: topics.get(name) is not None)
        self.publishing = Publishing(
            storage,
            self.topology,
            topics,
            self.marked,
            self.timers,
            self.staged,
            self.config.routed_body_bytes_max,
        )
        self.routing: Routing = Routing(self.access, self.topology, self.publishing, random)
        self.schedules: Schedules = Schedules(storage, self.routing)
        self.publisher.routing, self.publisher.schedules = self.routing, self.schedules
        self.mqtt_forwarding: MqttForwarding = MqttForwarding(
            self.access, storage, topics, self.routing
        )
        self.sessions = Sessions(self.tables, self.clock)
        self.retained = Retained(storage)
        self.packet_ids = PacketIds(self._lease_storage)

    def _wire_groups(self, membership: GroupMembership) -> None:
        self.coordinator = membership.coordinator = Coordinator(
            self.access,
            self.config.name,
            self._storage,
            self.topics,
            self.groups,
            self.members,
            self.offsets,
            membership,
        )
        self.in_place = TransactionalIds(
            self.access, self._storage, self.topics, self.batch_producers, self.coordinator
        )
        self.sharing: Sharing = Sharing(
            self.access,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.leases,
            self.lending,
        )
        self.coordinator.shares.on_lost = self.leases.release_held
        self.branches: Branches = Branches(
            self.access,
            self.tables,
            self.topics,
            self.batch_producers,
            self.coordinator,
            self.in_place,
        )

    def _wire_workqueues(self, topics: TopicCatalog) -> None:
        self.workqueues: WorkQueues = WorkQueues(
            self.access,
            self._storage,
            self._lease_storage,
            self.topics,
            topics,
            self.routing,
            self.reader,
            lambda: self.config,
        )
        self.retention_holds: RetentionHolds = RetentionHolds(
            self._storage,
            self.workqueues.ledgers,
            self.workqueues.declared,
            self.workqueues.queue_of_topic,
        )

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
            self.versions,
            self.topics,
            self.groups,
            self.offsets,
            self.delay,
            self.timers,
            self.transactions,
            self.request_modes,
            self.staged,
            self.prepared_batches,
            self.marked,
            self.batch_producers,
            self.coordinator,
            self.coordinator.notes,
            self.coordinator.uses,
            self.in_place,
            self.starts,
            self.compaction,
            self.placements,
            self.schemas,
            self.kafka_settings,
            self.branches,
            *self.topology.tables,
            self.workqueues.declared,
            self.workqueues.policies,
            self.schedules,
            self.schedules.times,
            self.sessions,
            self.sessions.subscriptions,
            self.retained,
            self.mqtt_forwarding,
        )
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
            lambda: self.config.transaction_check_interval_ms,
            self.checkback.check,
            "asking about open transactions",
        )
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
                *self._stops,
                self.waiting.end_all,
                self.leases.stop,
                self.workqueues.stop,
                partial(self.lease_tables.close, write=False),
                partial(self.tables.close, write=False),
            )
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
            self.compaction.close,
            self.delay.close,
            self.timers.stop,
            self.checkback.close,
            self.prepared_batches.close,
            self.in_place.stop,
            self.schedules.close,
        )

    @property
    def _close_order(self) -> tuple[Callable[[], None], ...]:
        return (
            self.compaction.close,
            self.delay.close,
            self.schedules.close,
            self.writer.end_of_tick,
            self.timers.close,
            self.waiting.end_all,
            self.checkback.close,
            self.prepared_batches.close,
            self.transactions.remember,
            self.workqueues.close,
            self.leases.close,
            self.lease_tables.close,
            self.offsets.flush,
            self.batch_producers.close,
            self.tables.close,
        )

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
