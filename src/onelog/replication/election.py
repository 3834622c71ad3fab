"""Who is master: one node's part in the elections of its set.

The registry (etcd) is the only judge. A node holds a lease there, with its own entry under it; a
master holds the `master` key under the same lease, too. When that key is gone, the nodes of the
in-sync set that are there say how far their logs go, the best of them writes the state of the next
epoch and the `master` key in one transaction, and the others follow it.

Two masters never acknowledge at the same time:

1. A master acknowledges only while it can prove its lease: less than the lease's time has gone by,
   on its own monotonic clock, since it SENT the keep-alive that was answered last. The registry
   counts from when it got that, which is later; a tenth of the time is left for clocks that run
   apart. `is_proven` is asked with each acknowledgement: no timer has to come in time, and a
   process that was stopped for half a minute finds out before it says a word. Wall time plays no
   part.
2. The `master` key goes only when the lease is over at the registry, so later than the old master
   gave up; a transaction that becomes master needs it to be absent. There is nothing else to wait
   for. (Or the master itself hands the key over, after it has stopped acknowledging.)
3. Whoever becomes master writes epoch + 1, if the state still has the revision that it saw: there
   is one master per epoch, and followers refuse masters of an epoch below the one they know.
4. The in-sync set is changed only in a transaction that compares the state's revision and the
   `master` key of this very mastership. A deposed master can change nothing, so who was elected is
   in the set that the old master still has to wait for: in the modes `majority` and `all` it could
   acknowledge nothing without the new one, whatever the clocks say.

Nobody outside the in-sync set is elected (`unclean` allows it). A member that may have lost writes
it had confirmed (its machine crashed before they were on disk) is not intact: it leaves the set,
and comes back when the master has had it catch up over a new connection. It is elected only if
all members are there and none is intact. A node whose store is not the one that was a member, or
an old copy of that (`identity`), is not even that: it is as good as not there until it has caught
up. Who may be elected, `candidates` says.

A registry that has lost its data is noticed by its revision, which went back: all that was learned
from it is forgotten, leases with it. Nobody is elected there before all nodes have said that they
are master no more.

A lease that cannot be proven is never used again: its keep-alives may reach the registry while the
answers get lost, and the others would wait for ever. The node asks for another one.
"""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from onelog.errors import RegistryError
from onelog.jobs import Job
from onelog.replication import candidates
from onelog.replication.candidates import Candidates, is_ready, progress_of, rank
from onelog.replication.identity import Identity
from onelog.replication.registry import (
    NOTHING,
    Lease,
    Mastership,
    NodeEntry,
    ProgressEntry,
    Put,
    Registry,
    ReplicaSetState,
    Request,
    Snapshot,
    View,
    encode,
    view_of,
)
from onelog.replication.roles import ElectionNode, InSync, Role, Self

log = logging.getLogger(__name__)

Schedule = Callable[[int, Callable[[], None]], None]
"""Calls a function after some milliseconds."""

TICKS = 4
"""Keep-alives in the time of a lease."""
DRIFT = 10
"""Clocks may run apart by one part in so many."""
NO_LEASE = Lease(0, 0)
GIVEN_UP_MAX = 10
REST_LEASES = 3
"""Who made room for another master lets others go first for so long."""


class Election:
    """One node's part. Everything runs in one thread; `start` begins, `stop` ends it."""

    def __init__(
        self,
        me: Self,
        node: ElectionNode,
        registry: Registry,
        monotonic_ms: Callable[[], float],
        wall_ms: Callable[[], int],
        schedule: Schedule,
        identity: Identity | None = None,
    ) -> None:
        self.me = me
        self.identity = identity or Identity(me.id)
        self._node = node
        self._registry = registry
        self._now = monotonic_ms
        self._wall_ms = wall_ms
        self._schedule = schedule
        self.role = Role()
        self.view = View()
        """What the registry had when it was read last."""
        self._seen = self._seen_then = 0
        """The newest revision that was heard of, now and when the registry was asked last.

        What is older than it was then, the registry has lost; what is older than now comes late.
        """
        self._known_epoch = 0
        self._is_recognized = False
        self._reported = InSync(frozenset(), me.replicas, 0)
        self._lease = NO_LEASE
        self._proven_until = -math.inf
        self._given_up: set[int] = set()
        self._lease_requested = False
        self._reading = self._read_again = False
        self._writing = False
        self._entering = False
        self._entered_at = -math.inf
        self._vacant_since: float | None = None
        self._candidates: tuple[Candidates, float] = (Candidates(), 0.0)
        """Who may be the next master, and since when."""
        self._hand_over_reply: Callable[[str], None] | None = None
        """Told when this node is master, which somebody wants whatever it lacks."""
        self._wanted: frozenset[int] | None = None
        self._handing_over = False
        self._draining = False
        self._leaving: list[Callable[[str], None]] = []
        self._stopped = False
        self._resting_until = -math.inf
        self._handled = 0
        """The revision of the last request that was answered."""
        self._said = ""
        self._job = Job("taking part in elections")

    @property
    def _period_ms(self) -> int:
        return max(1, (self._lease.ttl_ms or self.me.lease_ms) // TICKS)

    def is_proven(self) -> bool:
        """Whether this node is certainly the master at this moment."""
        return self.role.is_master and self._now() < self._proven_until

    # -- keeping in touch ----------------------------------------------------------------------

    def start(self) -> None:
        """Take part from now on."""
        self._registry.watch(self._read)
        self._tick()

    def stop(self) -> None:
        """Take part no more. Whoever was master hands over first, if that matters."""
        self._stopped = True
        self._give_up_lease()

    def _tick(self) -> None:
        if self._stopped:
            return
        with self._job:
            self._keep_in_touch()
        left = self._proven_until - self._now()
        soon = self.role.is_master and 0 < left < self._period_ms
        self._schedule(int(left) + 1 if soon else self._period_ms, self._tick)

    def _keep_in_touch(self) -> None:
        self._check_proof()
        if self._lease.number:
            self._keep_alive()
        else:
            self._ask_for_lease()
        self._read()
        if self.role.is_master and not self._node.progress().fit:
            self._yield()

    def _check_proof(self) -> None:
        """See that a lease is not renewed, nor anything done with it, that cannot be proven."""
        over_ms = self._now() - self._proven_until
        if over_ms >= (0 if self.role.is_master else self._lease.ttl_ms):
            self._give_up_lease()
        if self.role.is_master and not self.is_proven():
            self._become(Role(epoch=self.role.epoch), "cannot prove its lease any longer")

    def _yield(self) -> None:
        """As a master that can do nothing for now: let another one try, if there is one."""
        state = self.view.state
        others = (set(state.in_sync) if state else set()) & self.view.nodes.keys() - {self.me.id}
        if self._handing_over or not any(progress_of(self.view, each).fit for each in others):
            return
        self._resting_until = self._now() + REST_LEASES * self.me.lease_ms

        def done(error: str) -> None:
            if error and self.role.is_master:
                self._give_up_lease()
                self._become(Role(epoch=self.role.epoch), f"makes room for another one: {error}")

        self.hand_over(done)

    def _ask_for_lease(self) -> None:
        if self._lease_requested:
            return
        self._lease_requested = True
        sent = self._now()

        def granted(lease: Lease | None) -> None:
            self._lease_requested = False
            if lease is None:
                return
            if self._stopped:
                self._registry.revoke(lease.number)
                return
            self._lease = lease
            self._renewed(sent)
            self._read()

        self._registry.grant(self.me.lease_ms, granted)

    def _keep_alive(self) -> None:
        sent, lease = self._now(), self._lease

        def renewed(alive: bool | None) -> None:
            if self._stopped or lease != self._lease or alive is None:
                return
            if alive:
                self._renewed(sent)
                return
            self._lease, self._proven_until = NO_LEASE, -math.inf
            self._check_proof()
            self._ask_for_lease()

        self._registry.keep_alive(lease.number, renewed)

    def _renewed(self, sent: float) -> None:
        until = sent + self._lease.ttl_ms * (1 - 1 / DRIFT)
        self._proven_until = max(self._proven_until, until)

    def _give_up_lease(self) -> None:
        if self._lease.number:
            self._given_up = {*sorted(self._given_up)[-GIVEN_UP_MAX:], self._lease.number}
            self._registry.revoke(self._lease.number)
        self._lease, self._proven_until = NO_LEASE, -math.inf

    def _read(self) -> None:
        if self._stopped:
            return
        if self._reading:
            self._read_again = True
            return
        self._reading = True
        self._seen_then = self._seen
        self._registry.read(self._was_read)

    def _learn(self, view: View) -> None:
        if view.revision >= self._seen:
            self._seen = view.revision
            self.view = view
            self._known_epoch = max(self._known_epoch, self._epoch)

    def _was_read(self, snapshot: Snapshot | None) -> None:
        self._reading = False
        if self._stopped:
            return
        if snapshot is not None and snapshot.revision < self._seen_then:
            self._start_anew(snapshot.revision)
        if snapshot is not None and snapshot.revision >= self._seen:
            try:
                view = view_of(snapshot)
            except RegistryError as error:
                self._say(str(error))
            else:
                if view.state_revision < self.view.state_revision:
                    self._start_anew(snapshot.revision)  # It has come as far again meanwhile.
                self._learn(view)
                self._look()
        if self._read_again:
            self._read_again = False
            self._read()

    def _start_anew(self, revision: int) -> None:
        """The registry has lost what it knew: nothing counts that was learned from it."""
        log.error(
            "node %d: etcd is at revision %d and was at %d, where it knew more of this set: it has "
            "lost its data, or is another one. This node registers there anew; a master is elected "
            "when all nodes of the set are there",
            self.me.id,
            revision,
            self._seen,
        )
        self._seen, self.view = 0, View()
        self.identity.is_outside = False
        self._give_up_lease()
        self._ask_for_lease()

    def _write(
        self,
        expected: dict[str, int],
        puts: dict[str, Put | None],
        done: Callable[[int | None], None],
    ) -> None:
        """Change the state: once at a time. What is told to `done` is as `Registry.write` says."""
        assert not self._writing
        self._writing = True

        def written(revision: int | None) -> None:
            self._writing = False
            if not self._stopped:
                done(revision)
                self._read()

        self._registry.write(expected, puts, written)

    # -- looking at what there is --------------------------------------------------------------

    def _look(self) -> None:
        """Do what is to be done about what was read."""
        self._check_proof()
        view = self.view
        if not self._is_recognized:
            self._recognize()
        if view.master is None:
            self._find_vacant()
        elif self._holds_mastership():
            self._reign()
        else:
            self._follow(view.master)
        self._enter()
        self._answer_request()
        self._go_on_leaving()
        if self._vacant_since is not None and self._may_run(self._now() - self._vacant_since):
            self._run()

    def _holds_mastership(self) -> bool:
        view = self.view
        return (
            view.master is not None
            and view.master.id == self.me.id
            and view.master_lease == self._lease.number != 0
            and self._now() < self._proven_until
        )

    def _find_vacant(self) -> None:
        if self._vacant_since is None:
            self._vacant_since = self._now()
        # Who follows nobody writes nothing: how far logs go can be compared from now on.
        self._become(Role(epoch=self._epoch), "has no master")

    def _follow(self, master: Mastership) -> None:
        self._vacant_since, self._candidates = None, (Candidates(), 0.0)
        if self._hand_over_reply is not None and master.id != self.me.id:
            asked, self._hand_over_reply = self._hand_over_reply, None
            asked(f"node {master.id} has become the master")
        if master.id == self.me.id:
            # Of an earlier start, or under a lease that was given up: it will go.
            if self.view.master_lease in self._given_up:
                self._registry.revoke(self.view.master_lease)  # It was not heard the first time.
            self._become(Role(epoch=self._epoch), "waits until its former lease is over")
            return
        entry = self.view.nodes.get(master.id)
        role = Role(False, self._epoch, master.id)
        if entry is not None:
            role = replace(role, address=entry.address, ha_address=entry.ha_address)
        self._become(role, f"follows node {master.id} in epoch {role.epoch}")

    @property
    def _epoch(self) -> int:
        return self.view.state.epoch if self.view.state else 0

    def _become(self, role: Role, why: str) -> None:
        if role == self.role:
            return
        # What happens at the start is no surprise.
        log.log(logging.WARNING if self.role.epoch else logging.INFO, "node %d %s", self.me.id, why)
        self.role = role
        self._handing_over = False
        self._wanted = None
        self._reported = self._in_sync()
        self._node.become(role, self._reported)

    def _in_sync(self) -> InSync:
        state = self.view.state
        if state is None:
            return InSync(frozenset(), self.me.replicas, 0)
        ids, revision = frozenset(state.in_sync), self.view.state_revision
        return InSync(ids, state.replicas, revision, self._unfit())

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            log.warning("node %d: %s", self.me.id, what)

    # -- the node's own entry ------------------------------------------------------------------

    def _recognize(self) -> None:
        """Once after a start: see whether this node's store is the one that the registry knows."""
        self._is_recognized = True
        view, identity = self.view, self.identity
        member = view.members.get(self.me.id)
        if view.state is None:
            return  # Nobody has ever been elected, as far as is known.
        if member is None:
            why = "its store is empty" if self._node.is_empty() else ""
        else:
            why = identity.why_new(member)
            if not why and self._node.has(member.epoch, member.confirmed):
                identity.confirmed = member.confirmed
            elif not why and not identity.doubt:
                why = f"its store had the log up to {member.confirmed}, and lacks that now"
        if why:
            identity.is_new = True
            identity.doubt_it(why)
            log.warning(
                "node %d joins as a new member, and is not elected before it has caught up with a "
                "master: %s",
                self.me.id,
                why,
            )

    def _enter(self) -> None:
        """Write what this node is and how far, if that is not there as it should be."""
        me, view, lease = self.me, self.view, self._lease.number
        if not lease or self._entering:
            return
        found, there = view.nodes.get(me.id), view.node_entries.get(me.id, NOTHING)
        if found is not None and found.instance != me.instance:
            self._say(f"another process is, or was until now, node {me.id} of the set: waiting")
            return
        node = self._node.progress()
        if self.identity.doubt and found is not None and view.state is not None:
            if me.id not in view.state.in_sync:
                # Who takes it into the set now sees what it really has.
                self.identity.is_outside = node.attached or self.identity.is_outside
            elif self.identity.is_outside:
                self.identity.trust()
        identity, addresses = self.identity, (me.address, me.ha_address, me.instance)
        entry = NodeEntry(
            *addresses, identity.is_intact, self._draining, me.kafka_address, identity.is_new
        )
        progress = ProgressEntry(
            node.epoch,
            node.end,
            node.confirmed,
            node.fit and self._now() >= self._resting_until,
            node.lags,
            view.state_revision if view.master is None else -1,
            self._wall_ms(),
            max(self._known_epoch, node.epoch),
        )
        puts: dict[str, Put | None] = {}
        if there.lease != lease or entry != found:
            puts[f"nodes/{me.id}"] = Put(encode(entry), lease)
        known = progress_of(view, me.id)
        is_due = self._now() - self._entered_at >= self._period_ms
        if (
            puts
            or progress.vacancy != known.vacancy
            or (is_due and msgspec.structs.replace(progress, time=known.time) != known)
        ):
            puts[f"progress/{me.id}"] = Put(encode(progress), lease)
        member = view.members.get(me.id)
        has_all = member is not None and self._node.has(member.epoch, member.confirmed)
        known_as = self.identity.entry(*node.held, member if has_all else None)
        if known_as is not None and known_as != member and (puts or is_due):
            puts[f"members/{me.id}"] = Put(encode(known_as))
        if not puts:
            return
        self._entering = True
        self._entered_at = self._now()

        def entered(revision: int | None) -> None:
            self._entering = False
            if revision:
                self._read()

        self._registry.write({f"nodes/{me.id}": there.revision}, puts, entered)

    # -- becoming master -----------------------------------------------------------------------

    def _may_run(self, waited: float) -> bool:
        view, me = self.view, self.me.id
        mine = view.node_entries.get(me)
        if (
            self._writing
            or mine is None
            or mine.lease != self._lease.number
            or not is_ready(view, me)
            or self._now() >= self._proven_until
        ):
            return False
        if self._hand_over_reply is not None:
            return waited >= self.me.lease_ms  # By then any former master knows that it is over.
        found = candidates.find(view, self.me.replicas, is_patient=waited >= self._period_ms)
        if not found.ids:
            found = self._unclean(found, waited)
        if found != self._candidates[0]:
            self._candidates = found, self._now()
        waited = self._now() - self._candidates[1]
        if me not in found.ids:
            return False
        if not self._have_all_said(found.ids) and (found.anew or waited < self._period_ms):
            return False
        if view.state is not None and not found.anew and waited >= 2 * self._period_ms:
            return True  # The best one does not run, and each member would do.
        return me == max(found.ids, key=self._rank)

    def _have_all_said(self, ids: frozenset[int]) -> bool:
        """Whether all have said how far they are who could have: not so the master that is gone."""
        state = self.view.state
        expected = ids | (set(state.in_sync) - {state.master} if state else set())
        return all(is_ready(self.view, each) for each in expected)

    def _rank(self, number: int) -> tuple[bool, bool, int, int, int]:
        return rank(self.view, number)

    def _unclean(self, found: Candidates, waited: float) -> Candidates:
        """If it may be done without those who had everything, anybody; after a while."""
        view = self.view
        if self.me.unclean and view.state is not None and not candidates.members_of(view):
            if waited >= TICKS * self._period_ms:
                self._say("nobody is there who had everything: going on without them")
                return Candidates(frozenset(view.nodes), anew=found.anew)
        elif found.why:
            self._say(found.why)
        return found

    def _run(self) -> None:
        view, me, lease = self.view, self.me.id, self._lease.number
        former = view.state or ReplicaSetState(0, me, (), self.me.replicas)
        members = set(former.in_sync) - self._unfit() | {me}
        here = members & view.nodes.keys()
        if len(here) >= self.me.needed(former.replicas):
            members = here
        is_forced = self._hand_over_reply is not None
        if is_forced or self._candidates[0].anew or not candidates.members_of(view):
            members = {me}  # Of the others nothing is known, or they have what this one lacks.
        if is_forced:
            self._say("becomes master because somebody wants it, whatever it lacks")
        epoch = candidates.last_epoch(view) + 1
        state = ReplicaSetState(epoch, me, tuple(sorted(members)), former.replicas)
        master = Mastership(me, state.epoch)

        def written(revision: int | None) -> None:
            if revision:
                self._learn(view.with_state(revision, state, master, lease))
                self._look()

        self._write(
            {"state": view.state_revision, "master": 0},
            {"state": Put(encode(state)), "master": Put(encode(master), lease)},
            written,
        )

    # -- being master --------------------------------------------------------------------------

    def _reign(self) -> None:
        """The registry says that this node is master."""
        state = self.view.state
        assert state is not None
        self._vacant_since, self._candidates = None, (Candidates(), 0.0)
        if self._hand_over_reply is not None:
            asked, self._hand_over_reply = self._hand_over_reply, None
            asked("")
        if not self.role.is_master or self.role.epoch != state.epoch:
            self.identity.trust()  # What it has is what there is, now.
            role = Role(True, state.epoch, self.me.id, self.me.address, self.me.ha_address)
            self._become(role, f"is master of epoch {state.epoch}")
        elif self._reported != self._in_sync():
            self._reported = self._in_sync()
            self._node.in_sync_is(self._reported)
        if self._wanted is not None:
            self._propose(self._wanted)
        elif self._unfit() & frozenset(state.in_sync):
            self._propose(frozenset(state.in_sync))

    def _unfit(self) -> frozenset[int]:
        """Nodes that are to be stopped, or may have lost something."""
        return frozenset(
            number
            for number, node in self.view.nodes.items()
            if (node.draining or not node.intact) and number != self.me.id
        )

    def propose_in_sync(self, ids: frozenset[int]) -> None:
        """Have the registry know another in-sync set; `ElectionNode.in_sync_is` tells what became
        of it.
        """
        if self.role.is_master:
            self._wanted = ids
            self._propose(ids)

    def _propose(self, wanted: frozenset[int]) -> None:
        state = self.view.state
        if self._writing or self._handing_over or state is None:
            return
        ids = (wanted - self._unfit()) | {self.me.id}
        if len(ids) < self.me.needed(state.replicas):
            ids |= frozenset(state.in_sync) - self._unfit()
        if ids == wanted == frozenset(state.in_sync):
            self._wanted = None
            self._reported = self._in_sync()
            self._node.in_sync_is(self._reported)
            return

        def written(error: str) -> None:
            if not error and self._wanted == wanted:
                self._wanted = None

        # A proposal that is not taken over as it is makes a new revision, too: what was proposed
        # before it, and is perhaps still on its way, can come to nothing any more.
        ids = ids.intersection(self.view.nodes.keys() | set(state.in_sync))
        added = ids.difference(state.in_sync)
        changed = ReplicaSetState(state.epoch, state.master, tuple(sorted(ids)), state.replicas)
        self._change(changed, written, added)

    def _change(
        self, state: ReplicaSetState, done: Callable[[str], None], added: Iterable[int] = ()
    ) -> None:
        """As the master: write a state of the same epoch, unless who is added starts anew."""
        view = self.view

        def written(revision: int | None) -> None:
            done("" if revision else "the registry did not take it: try again")
            if revision:
                self._learn(view.with_state(revision, state))
                self._look()

        expected = {"state": view.state_revision, "master": view.master_revision}
        expected |= {f"nodes/{each}": view.node_entries[each].revision for each in added}
        self._write(expected, {"state": Put(encode(state))}, written)

    # -- what people ask -----------------------------------------------------------------------

    def _answer_request(self) -> None:
        """Do what is asked of this node, if it has not been answered."""
        request, revision = self.view.requests.get(self.me.id, (None, 0))
        state = self.view.state
        if request is None:
            self._hand_over_reply = None  # Who asked waits no longer.
        if request is None or request.answer is not None:
            return
        if revision == self._handled or self._writing or self._handing_over:
            return

        def answer(text: str) -> None:
            self._handled = revision
            answered = Request(request.do, request.target, text)
            key = f"requests/{self.me.id}"
            self._registry.write({key: revision}, {key: Put(encode(answered))}, lambda _: None)

        if request.do == "elect":
            self._handled = revision
            self._wait_to_run(answer)
        elif request.do == "truncate":
            self._node.may_truncate()
            answer("")
        elif request.do == "join":
            self._draining = False
            answer("")
        elif request.do == "drain":
            self._handled = revision
            self.leave(answer)
        elif not self.role.is_master or state is None:
            answer(f"node {self.me.id} is not the master any more")
        elif request.do == "replicas":
            count = request.target
            self._change(ReplicaSetState(state.epoch, state.master, state.in_sync, count), answer)
        else:
            self.hand_over(answer, None if request.target < 0 else request.target)

    def _wait_to_run(self, answer: Callable[[str], None]) -> None:
        """Be the next master because somebody wants it, if there is none."""
        master = self.view.master
        if master is not None:
            answer(f"node {master.id} is the master: nobody is to be elected")
        else:
            self._hand_over_reply = answer

    def leave(self, done: Callable[[str], None]) -> None:
        """Be neither master nor in sync any more, so that nobody misses this node; then call back.

        What is told is empty, or why it was not done.
        """
        self._draining = True
        self._leaving.append(done)
        self._go_on_leaving()

    def _go_on_leaving(self) -> None:
        state = self.view.state
        if not self._leaving or self._handing_over:
            return
        if self.role.is_master:
            self.hand_over(lambda error: self._left(error) if error else None)
        elif state is None or self.me.id not in state.in_sync:
            self._left("")

    def _left(self, error: str) -> None:
        self._draining = not error
        leaving, self._leaving = self._leaving, []
        for done in leaving:
            done(error)

    def hand_over(self, done: Callable[[str], None], target: int | None = None) -> None:
        """As the master: make another node master, by default the best, and call back.

        What is told is empty, or why it was not done.
        """
        state = self.view.state
        if not self.role.is_master or state is None or self._handing_over:
            done("this node is not the master, or is handing over already")
            return
        others = (set(state.in_sync) & self.view.nodes.keys()) - {self.me.id} - self._unfit()
        chosen = max(others, key=self._rank, default=-1) if target is None else target
        if chosen not in others:
            done("no other node is in sync" if target is None else f"node {target} is not in sync")
            return
        self._handing_over = True

        def ready(error: str) -> None:
            if not self._handing_over:
                done("this node has lost its mastership meanwhile")
            elif error:
                self._handing_over = False
                done(error)
            else:
                self._give_mastership(chosen, done)

        self._node.prepare_hand_over(chosen, ready)

    def _give_mastership(self, target: int, done: Callable[[str], None]) -> None:
        """The target has everything: put the key under its lease. There is no time without one."""
        if not self._handing_over:
            done("this node has lost its mastership meanwhile")
            return
        if self._writing:
            self._schedule(10, lambda: self._give_mastership(target, done))
            return
        view = self.view
        state, lease = view.state, view.node_entries.get(target, NOTHING).lease
        assert state is not None
        if not lease:  # A key without one would stay for ever, whoever is there.
            self._handing_over = False
            self._node.resume()
            done(f"node {target} is gone")
            return
        master = Mastership(target, state.epoch + 1)
        members = state.in_sync
        if self._draining and len(members) > self.me.needed(state.replicas):
            members = tuple(each for each in members if each != self.me.id)
        following = ReplicaSetState(master.epoch, target, members, state.replicas)

        def written(revision: int | None) -> None:
            done("" if revision else "the registry did not take it: try again")
            if revision is None:
                # Perhaps it was done: this one can be master no more without a new election.
                self._give_up_lease()
                self._become(Role(epoch=self._epoch), "handed over, perhaps")
            elif revision == 0 and self._handing_over:
                self._handing_over = False
                self._node.resume()
            elif revision:
                self._learn(view.with_state(revision, following, master, lease))
                self._look()

        self._write(
            {"state": view.state_revision, "master": view.master_revision},
            {"state": Put(encode(following)), "master": Put(encode(master), lease)},
            written,
        )
