"""A node of a set: what it is now, and each change of that, always in the same order.

    lead     stop following -> cut a record that is not whole -> begin the epoch -> a Leader takes
             followers -> when the whole log is confirmed, the core is opened as a master's
    follow   fence the Leader: nothing is acknowledged any more -> the core is opened as a
             follower's -> a Follower takes the master's log

The core stays open between the two, so reads go on. How it is opened (with sockets, or in a
simulation), and who says which role it is to be, is given from outside.

Invariant: there is a Leader or a Follower or neither, never both; whoever is told another role
acknowledges nothing in the old one from that call on, even if the change takes its time. Of roles
that are told while a change is under way, only the last is taken.
"""

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from onelog.config import ReplicationConfig
from onelog.errors import OnelogError, StoreError
from onelog.jobs import Job
from onelog.replication.epochs import Epochs
from onelog.replication.follower import Follower, MasterName
from onelog.replication.identity import Identity
from onelog.replication.leader import Leader, NodeRuntime
from onelog.replication.link import Buffer, Link, Session, Touched
from onelog.replication.registry import Lag
from onelog.replication.roles import InSync, LogProgress, Role
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

TICK_MS = 100
HAND_OVER_MS = 1_500
"""How long the next master may take to get what is missing there."""
HAND_OVER_CHECK_MS = 5
AGAIN_MS = 1_000
"""After this time a role that could not be taken is tried again."""

Then = Callable[[OnelogError | None], None]


class Core(Protocol):
    """What a replica tells the core."""

    follows: bool
    """Whether it was opened as a follower's."""

    def follow(self, touched: Touched) -> None:
        """A follower's: more is confirmed."""
        ...

    def confirmed(self, touched: Touched) -> None:
        """A master's: more is confirmed."""
        ...

    def flush(self) -> None:
        """A master's: write what is only in memory, before another goes on with the log."""
        ...

    def fence(self) -> None:
        """A master's: acknowledge nothing from now on."""
        ...

    def refuse_writes(self, reason: str | None) -> None:
        """A master's: take nothing new until it is told None; who waits is answered as usual."""
        ...

    def master_is(self, address: str) -> None:
        """A follower's: whom to ask for what it does not do."""
        ...


class ReplicaHost(Protocol):
    """Where a replica lives: in a server, or in a simulation."""

    def rebuild(
        self, role: Role, leader: Leader | None, between: Callable[[], None], then: Then
    ) -> None:
        """Close the core, so that it writes nothing more; call `between`; open it in its new role.

        `then` is told when that is done, or what went wrong. If it is `between` that failed, the
        core is opened all the same.
        """
        ...

    @property
    def core(self) -> Core: ...

    def dial(self, address: str) -> None:
        """Keep a connection to a master, for `Replica.dialed`; empty: hang up."""
        ...


@dataclass(eq=False)
class Replica:
    """One node. `start` opens its core as a follower's; then `become` says what it is to be."""

    node_id: int
    store: MessageStore
    epochs: Epochs
    config: ReplicationConfig
    around: ReplicaHost
    runtime: NodeRuntime
    _: KW_ONLY
    is_proven: Callable[[], bool] = lambda: True
    """Whether this node, which is master, is certainly the only one."""
    propose_in_sync: Callable[[frozenset[int]], None] | None = None
    """Asks the judge for another in-sync set; None: the leader's word counts."""
    identity: Identity = field(default_factory=Identity)

    def __post_init__(self) -> None:
        self.role = Role()
        """What it was told to be; it may be on its way there."""
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.leads = False
        """Whether the core is a master's."""
        self.is_ending = False
        """Whether roles are left, but no other is taken any more."""
        self.hindrance = ""
        """Why the role could not be taken; empty if it was."""
        self._in_sync = InSync(frozenset(), self.config.replicas, 0)
        self._taken: Role | None = None
        self._busy = self._closed = self._is_open = False
        self._may_truncate = False
        """Whether somebody has said that what the master lacks may go."""
        self._led_since_ms = 0
        self._master = MasterName(
            self.runtime.clock,
            self.config.lag_ms,
            lambda address: self.around.core.master_is(address),
        )
        self._job = Job("looking after replicas")

    # -- roles ---------------------------------------------------------------------------------

    def start(self, then: Then = lambda error: None) -> None:
        """Open the core as a follower's, who follows nobody yet."""
        self._rebuild(self.role, None, lambda: None, then)
        self._tick()

    def become(self, role: Role, in_sync: InSync) -> None:
        """Be this from now on. Nothing is acknowledged in the old role after this call."""
        self.role, self._in_sync = role, in_sync
        self._leave_role()
        self._take_role()

    def in_sync_is(self, in_sync: InSync) -> None:
        """What the judge has recorded."""
        self._in_sync = in_sync
        if self.leader is not None:
            self.leader.unfit = in_sync.unfit
            self.leader.in_sync_is(in_sync.ids, in_sync.revision, in_sync.replicas)

    def close(self) -> None:
        """Be nothing any more. The core and the store are their owner's to close."""
        self._closed = True
        self._leave_role()

    def _leave_role(self) -> None:
        leader, self.leader = self.leader, None
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.stop()
            self.around.dial("")
        if leader is not None:
            if self.leads:
                self.around.core.fence()
            leader.fence()
        self._taken = None

    def _take_role(self) -> None:
        if self._busy or self._closed or self.is_ending or self._taken == self.role:
            return
        self._taken = role = self.role
        self.hindrance = ""
        try:
            if role.is_master:
                self._lead(role)
            elif self.leads or not self._is_open:
                self._taken = None  # To be followed when the core is open.
                self._rebuild(role, None, self._become_follower, lambda error: None)
            else:
                self._follow(role)
        except OnelogError as error:
            self._failed(error)
        except Exception as error:
            log.exception("node %d could not take its role", self.node_id)
            self._failed(StoreError(f"a bug: {error!r}"))

    def _failed(self, error: OnelogError) -> None:
        what = "be the master" if self.role.is_master else "follow"
        self.hindrance = f"it cannot {what}: {error}"
        log.error("node %d: %s", self.node_id, self.hindrance)
        self._leave_role()
        self.runtime.schedule(AGAIN_MS, self._take_role)

    def _rebuild(
        self, role: Role, leader: Leader | None, between: Callable[[], None], then: Then
    ) -> None:
        """Have the core closed and opened; whatever was told meanwhile is done after it."""
        self._busy = True

        def rebuilt(error: OnelogError | None) -> None:
            self._busy = False
            self._is_open = error is None
            self.leads = role.is_master and self._is_open
            then(error)
            if error is not None:
                self._failed(error)
                return
            if self.leads and self.leader is not leader:
                self.around.core.fence()
            self._take_role()

        self.around.rebuild(role, leader, between, rebuilt)

    # -- leading -------------------------------------------------------------------------------

    def _lead(self, role: Role) -> None:
        store, in_sync = self.store, self._in_sync
        store.tail.drop_partial()
        if role.epoch > self.epochs.last:
            # What was here before the set was founded is part of its first epoch.
            start = store.log_end if self.epochs.entries else store.log.start
            self.epochs.begin(role.epoch, start)
        self.leader = leader = Leader(
            store,
            self.epochs,
            self.runtime,
            self.config,
            self.node_id,
            on_confirmed=self._confirmed,
            propose_in_sync=self.propose_in_sync or self._take_word,
            recorded=in_sync.ids,
            revision=in_sync.revision,
            is_proven=self.is_proven,
        )
        leader.replicas, leader.unfit = in_sync.replicas, in_sync.unfit
        self._led_since_ms = self.runtime.clock.now_ms()
        store.tail.set_gated(leader.gated)
        self._open_if_confirmed()

    def _take_word(self, ids: frozenset[int]) -> None:
        assert self.leader is not None
        self.leader.in_sync_is(ids, self.leader.revision + 1)

    def _confirmed(self, log_offset: int, touched: Touched) -> None:
        if not self.around.core.follows:
            self.around.core.confirmed(touched)  # Also while its ports are being opened.
        elif not self._busy:
            if self._is_open:
                self.around.core.follow(touched)
            self._open_if_confirmed()

    def _open_if_confirmed(self) -> None:
        """A master's core knows its whole log: before that, it would decide on half of it."""
        if self.store.confirmed == self.store.log_end:
            self._rebuild(self.role, self.leader, lambda: None, lambda error: None)

    def accepted(self, link: Link, address: str) -> Session:
        """A follower has connected."""
        if self.leader is None:
            return _NoSession(link)
        return self.leader.connected(link, address, epochs=bool(self.config.etcd))

    # -- following -----------------------------------------------------------------------------

    def _become_follower(self) -> None:
        self.store.tail.set_gated(True)
        self.store.tail.follow()

    def _follow(self, role: Role) -> None:
        self._master.is_at(role.address)
        if role.ha_address:
            self.store.tail.set_gated(True)
            self.follower = Follower(
                self.store,
                self.epochs,
                self.runtime,
                self.node_id,
                on_confirmed=lambda touched: self.around.core.follow(touched),
                cut=self._cut,
                keeps=self._keeps,
                gives_up=lambda: self._may_truncate,
                drop_doubtful=self._drop_doubtful,
                with_epochs=bool(self.config.etcd),
            )
            self.around.dial(role.ha_address)

    def _drop_doubtful(self) -> None:
        """What was not on disk for certain may be torn where no checksum tells: have it again.

        Only once there is a master to have it from: without one, it may be all that is left.
        """
        if not self.identity.is_torn:
            return
        self.store.tail.drop_partial()
        if self.store.confirmed < self.store.log_end:
            why = "it may be torn by a loss of power, and is had from the master again"
            self.store.tail.cut(self.store.confirmed, why)
            self.epochs.cut(self.store.log_end)
        self.identity.is_torn = False  # Whether what is left is enough, the election knows.

    def _keeps(self) -> int:
        """Up to where the log is not cut because a master lacks it."""
        confirms = self.config.ack in ("majority", "all")
        if not confirms or self.config.unclean or self._may_truncate:
            return 0
        return max(self.store.confirmed, self.identity.confirmed)

    def may_truncate(self) -> None:
        """Follow the master, whatever this node has that it lacks: somebody has said so."""
        self._may_truncate = True

    def _cut(self, log_offset: int, why: str, then: Then) -> None:
        """End the log there. If the core knows of what goes, it is opened anew."""
        may_lose, self._may_truncate = self._may_truncate, False
        if log_offset < max(self.store.confirmed, self.identity.confirmed):
            self.identity.doubt_it("its log was cut, and is had from the master again")
            self.identity.confirmed = min(self.identity.confirmed, log_offset)

        def cut() -> None:
            self.store.tail.cut(log_offset, why, may_lose=may_lose)

        if log_offset < self.store.confirmed:
            self._rebuild(self.role, None, cut, then)
            return
        try:
            cut()
        except OnelogError as error:
            then(error)
        else:
            then(None)

    def dialed(self, link: Link, address: str) -> Session:
        """The connection to the master is there."""
        if self.follower is None:
            return _NoSession(link)
        return self.follower.connected(link, address)

    # -- what an election asks -----------------------------------------------------------------

    def progress(self) -> LogProgress:
        """How far this node is."""
        lags: tuple[Lag, ...] = ()
        if self.leader is not None:
            lags = tuple(
                Lag(each.node_id, each.behind_bytes, each.behind_ms if each.behind_bytes else 0)
                for each in self.leader.followers
            )
        attached = self.follower is not None and self.follower.is_attached
        fit = not self.hindrance and self.store.refusal is None and self._has_enough_followers()
        end = int(self.store.log_end)
        held = self._held()
        return LogProgress(self.epochs.last, end, self.store.confirmed, fit, attached, lags, held)

    def _held(self) -> tuple[int, int]:
        store = self.store
        held = store.confirmed
        if store.config.flush == "sync":
            held = min(held, int(store.log.flushed))
        return (self.epochs.at(held - 1)[0] if held else 0), held

    def has(self, epoch: int, confirmed: int) -> bool:
        """Whether the log goes so far, with the last byte before that of this epoch."""
        if self.store.log_end < confirmed:
            return False
        entries, last = self.epochs.entries, confirmed - 1
        if last < self.store.log.start or (entries and last < entries[0][1]):
            return True  # What is known of that place was deleted since.
        return self.epochs.at(last)[0] == epoch

    def is_empty(self) -> bool:
        """Whether there is nothing in the log, and never was."""
        return self.store.log_end == self.store.log.start == 0 and not self.epochs.entries

    def _has_enough_followers(self) -> bool:
        """Of a master: whether so many keep up that something can be confirmed."""
        leader = self.leader
        if (
            leader is None
            or self.runtime.clock.now_ms() - self._led_since_ms <= 2 * self.config.lag_ms
        ):
            return True
        return leader.available(0)

    def prepare_hand_over(self, target: int, ready: Callable[[str], None]) -> None:
        """Write and acknowledge nothing new from now on; ready when the target has the rest."""
        leader = self.leader
        if leader is None or not self.leads:
            ready("this node is not the master yet")
            return
        if not leader.keeps_up(target):
            ready(f"node {target} does not keep up")  # To wait for it would be for nothing.
            return
        try:
            self.around.core.flush()
        except OnelogError as error:
            log.warning("positions of the last seconds go with this master: %s", error)
        self.around.core.refuse_writes("another node is to be the master")
        leader.pause()
        until, deadline_ms = self.store.log_end, self.runtime.clock.now_ms() + HAND_OVER_MS

        def look() -> None:
            if leader.acked(target) >= until or leader is not self.leader:
                ready("")
            elif self.runtime.clock.now_ms() >= deadline_ms:
                self.resume()
                ready(f"node {target} did not get the whole log in {HAND_OVER_MS} ms")
            else:
                self.runtime.schedule(HAND_OVER_CHECK_MS, look)

        look()

    def resume(self) -> None:
        """Stay master after all."""
        if self.leader is not None and self.leads:
            self.leader.resume()
            self.around.core.refuse_writes(None)

    # -- time ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closed:
            return
        with self._job:
            if self.leader is not None:
                self.leader.tick()
            elif self.follower is not None and not self._busy:
                self.follower.tick()
                self._master.tick(self.follower)
                if self.follower.is_attached:
                    self._may_truncate = False
        self.runtime.schedule(TICK_MS, self._tick)


class _NoSession:
    """For a connection that comes when nobody leads here, or follows."""

    def __init__(self, link: Link) -> None:
        link.close()

    def received(self, data: Buffer) -> None:
        """Too late."""

    def ready(self) -> None:
        """Too late."""

    def lost(self) -> None:
        """As expected."""
