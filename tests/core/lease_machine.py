"""A machine that does with leases whatever it likes, and compares them with a simple model.

Three groups read the same two queues, one for each policy for what is not acknowledged. All
times are multiples of the deadlines' tick, so that the model knows to the millisecond when a lease
ends: when time moves on, never by itself.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.queues.lease_ledger import IN_ORDER, IN_PLACE, ReturnPolicy
from onelog.errors import LeaseNotFoundError
from onelog.rocketmq.profile import NAMING
from tests.core.leasing import Holding, Reader, reading

QUEUES = 2
RETRIES_MAX = 2
GROUPS = ("retried", "kept", "ordered")
TIMES_MS = st.sampled_from([0, 100, 1_000, 1_000, 5_000, 60_000])
PICK = st.integers(0, 1_000)


@dataclass
class Fact:
    """What is known of one message for one group."""

    body: bytes
    queue_id: int
    offset: int
    state: str = "waiting"
    """waiting, out, acknowledged or dead; and early: acknowledged ahead of its turn"""
    times: int = 0
    due_ms: int = 0
    leased: Holding | None = None
    """What it can be acknowledged with; None if it is out, but with nobody."""
    rejected: bool = False
    behind: set[bytes] = field(default_factory=set)
    """Of what was to be had before it, when it was put to the back, what was not handed out."""


class LeaseMachine(RuleBasedStateMachine):
    """Nothing is lost, early, invisible for ever, or back after it was acknowledged."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = reading(self.folder, QUEUES).world
        for group in GROUPS:
            self.world.core.groups.put(GroupConfig(group, retry_times_max=RETRIES_MAX))
        self.readers = {group: Reader(self.world, group) for group in GROUPS}
        self.facts: dict[str, dict[bytes, Fact]] = {group: {} for group in GROUPS}
        self.stale: list[tuple[str, Holding]] = []
        for queue_id in range(QUEUES):
            self.send(queue_id, 3)
        self.pop(2, 1_000)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            try:
                self._consume_everything()
            finally:
                self.world.close()
                shutil.rmtree(self.folder)

    def _consume_everything(self) -> None:
        """Whatever happened: in the end every message was acknowledged, or is a dead letter."""
        for group in GROUPS:
            for _ in range(4 * len(self.facts[group]) + 4):
                self.advance(60_000)
                got = self._pop(group, 32, 60_000)
                for leased in got:
                    self._ack(group, self.facts[group][leased.body])
                if not got:
                    break
        for facts in self.facts.values():
            assert {fact.state for fact in facts.values()} <= {"acknowledged", "dead"}
        dead = {fact.body for fact in self.facts["retried"].values() if fact.state == "dead"}
        assert set(self.world.bodies(NAMING.dead_letter_topic("retried"))) == dead

    # -- rules ---------------------------------------------------------------------------------

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 5))
    def send(self, queue_id: int, count: int) -> None:
        for _ in range(count):
            body = b"%d" % len(self.facts["kept"])
            offset = self.world.send(queue_id=queue_id, body=body).queue_offset
            for facts in self.facts.values():
                facts[body] = Fact(body, queue_id, offset)

    @rule(count=st.integers(1, 8), invisible_ms=TIMES_MS)
    def pop(self, count: int, invisible_ms: int) -> None:
        for group in GROUPS:
            self._pop_all_there_is(group, count, invisible_ms)

    def _pop_all_there_is(self, group: str, count: int, invisible_ms: int) -> None:
        blocked = self._blocked(group)
        waiting = [
            fact
            for fact in self.facts[group].values()
            if fact.state == "waiting" and fact.queue_id not in blocked
        ]
        free = [fact for fact in waiting if not fact.behind]
        got = self._pop(group, count, invisible_ms)
        assert min(count, len(free)) <= len(got) <= min(count, len(waiting))
        if group == "ordered":
            for leased in got:
                earlier = [
                    fact
                    for fact in self.facts[group].values()
                    if fact.queue_id == leased.queue_id and fact.offset < leased.offset
                ]
                assert all(fact.state in ("out", "acknowledged") for fact in earlier), earlier

    def _blocked(self, group: str) -> set[int]:
        facts = self.facts[group].values()
        ordered = group == "ordered"
        return {fact.queue_id for fact in facts if ordered and fact.state == "out"}

    def _pop(self, group: str, count: int, invisible_ms: int) -> list[Holding]:
        policy = self._policy(group)
        got = self.readers[group].pop(count, invisible_ms=invisible_ms, policy=policy)
        for leased in got:
            fact = self.facts[group][leased.body]
            assert fact.state == "waiting", (fact, leased)
            assert not fact.behind, (fact, leased)
            for other in self.facts[group].values():
                other.behind.discard(fact.body)
            in_place = group != "retried"
            assert fact.times == (leased.times if in_place else leased.message.reconsume_times)
            fact.state, fact.leased = "out", leased
            fact.due_ms = self.world.clock.now_ms() + invisible_ms
        return got

    def _policy(self, group: str) -> ReturnPolicy:
        policies = {"kept": IN_PLACE, "ordered": IN_ORDER}
        return policies.get(group, self.world.pop.policy)

    def _out(self) -> list[tuple[str, Fact]]:
        return [
            (group, fact)
            for group, facts in self.facts.items()
            for fact in facts.values()
            if fact.state == "out"
        ]

    def _held(self) -> list[tuple[str, Fact]]:
        return [(group, fact) for group, fact in self._out() if fact.leased is not None]

    def _pick_out(self, pick: int) -> tuple[str, Fact]:
        out = self._held()
        return out[pick % len(out)]

    @precondition(lambda self: self._held())
    @rule(
        how=st.sampled_from(
            ["one", "batch", "change", "change", "release", "release", "back", "reject", "stale"]
        ),
        pick=PICK,
        invisible_ms=TIMES_MS,
    )
    def end_or_change_a_lease(self, how: str, pick: int, invisible_ms: int) -> None:
        if how == "one":
            self._ack(*self._pick_out(pick))
        elif how == "batch":
            self._acknowledge_a_batch(pick)
        elif how == "change":
            self._change(pick, invisible_ms)
        elif how in ("release", "back"):
            self._release(pick, invisible_ms, how == "back")
        elif how == "reject":
            self._reject(pick)
        elif self.stale:
            self._acknowledge_with_a_stale_receipt(pick)

    def _ack(self, group: str, fact: Fact) -> None:
        assert fact.leased is not None
        self.readers[group].ack(fact.leased)
        self.stale.append((group, fact.leased))
        self._acknowledged(group, fact)

    def _acknowledged(self, group: str, fact: Fact) -> None:
        """In an ordered queue, acknowledgements count one after the other."""
        fact.state = "acknowledged"
        if group == "ordered":
            mates = [each for each in self.facts[group].values() if each.queue_id == fact.queue_id]
            earlier = {each.state for each in mates if each.offset < fact.offset}
            if "waiting" in earlier:
                fact.state, fact.times = "waiting", fact.times + 1
            elif earlier & {"out", "early"}:
                fact.state = "early"
            for each in sorted(mates, key=lambda mate: mate.offset):
                if each.state not in ("acknowledged", "early"):
                    break
                each.state = "acknowledged"

    def _acknowledge_a_batch(self, pick: int) -> None:
        group, fact = self._pick_out(pick)
        assert fact.leased is not None
        one = fact.leased
        together = [
            other
            for other in self.facts[group].values()
            if other.state == "out"
            and other.leased is not None
            and (other.leased.topic, other.leased.queue_id, other.leased.handle)
            == (one.topic, one.queue_id, one.handle)
        ]
        offsets = [other.leased.offset for other in together if other.leased is not None]
        reader = self.readers[group]
        done = reader.leases.acknowledge_some(
            group, one.topic, one.queue_id, [*offsets, 10**6], one.handle
        )
        reader.end_tick()
        assert done == len(together)
        for other in together:
            self._acknowledged(group, other)

    def _change(self, pick: int, invisible_ms: int) -> None:
        group, fact = self._pick_out(pick)
        assert fact.leased is not None
        old = fact.leased
        fact.leased = self.readers[group].change(old, invisible_ms)
        fact.due_ms = self.world.clock.now_ms() + invisible_ms
        if group != "ordered":
            self.stale.append((group, old))

    def _release(self, pick: int, after_ms: int, to_back: bool) -> None:
        group, fact = self._pick_out(pick)
        assert fact.leased is not None
        after_ms = 0 if to_back else after_ms
        self.readers[group].release(fact.leased, after_ms=after_ms, to_back=to_back)
        self.stale.append((group, fact.leased))
        fact.leased = None
        if after_ms:
            fact.due_ms = self.world.clock.now_ms() + after_ms
            return
        if to_back and group != "ordered":
            fact.behind = {
                mate.body
                for mate in self.facts[group].values()
                if mate.state == "waiting" and self._place(group, mate) == self._place(group, fact)
            }
        self._come_back(group, fact)

    def _place(self, group: str, fact: Fact) -> int:
        """The queue that a message is in now."""
        return -1 if group == "retried" and fact.times else fact.queue_id

    def _reject(self, pick: int) -> None:
        group, fact = self._pick_out(pick)
        assert fact.leased is not None
        self.readers[group].reject(fact.leased)
        self.stale.append((group, fact.leased))
        fact.leased, fact.rejected, fact.due_ms = None, True, self.world.clock.now_ms()

    def _acknowledge_with_a_stale_receipt(self, pick: int) -> None:
        group, leased = self.stale[-1 - pick % min(len(self.stale), 4)]
        try:
            self.readers[group].ack(leased)
        except LeaseNotFoundError:
            return
        raise AssertionError(f"{leased} was accepted")

    @rule(ms=TIMES_MS)
    def advance(self, ms: int) -> None:
        self.world.advance(ms)
        self.world.end_tick()
        self._expire()

    def _expire(self) -> None:
        now_ms = self.world.clock.now_ms()
        for group, fact in self._out():
            if fact.state != "out" or fact.due_ms > now_ms:
                continue
            released = fact.leased is None and not fact.rejected
            if fact.leased is not None:
                self.stale.append((group, fact.leased))
            if fact.rejected and group != "retried":
                self._acknowledged(group, fact)
            elif fact.rejected or (
                group == "retried" and not released and fact.times >= RETRIES_MAX
            ):
                fact.state = "dead"
            else:
                if group == "retried" and not released:
                    fact.times += 1
                self._come_back(group, fact)

    def _come_back(self, group: str, fact: Fact) -> None:
        """To its place, or for one that is retried, where it was put; early ones come along."""
        fact.state, fact.leased = "waiting", None
        if group == "retried":
            return
        fact.times += 1
        for mate in self.facts[group].values():
            behind = mate.queue_id == fact.queue_id and mate.offset > fact.offset
            if behind and mate.state == "early":
                mate.state, mate.times = "waiting", mate.times + 1

    @rule(
        how=st.sampled_from(["crash", "hand over", "acknowledge", "snapshot", "restart"]),
        group=st.sampled_from(GROUPS),
        pick=PICK,
        down_ms=TIMES_MS,
    )
    def come_back(self, how: str, group: str, pick: int, down_ms: int) -> None:
        """Crash, maybe with something that is not recorded yet; or stop cleanly for a while."""
        if how == "restart":
            self.world.close()
            self.world.clock.advance(down_ms)
            self.world.start()
            self.advance(0)
            return
        if how == "snapshot":
            self.world.core.lease_tables.snapshot(wait=True)
        elif how == "hand over":
            request = self.readers[group].request(policy=self._policy(group))
            self.world.broker.queues.lease(SELF, request, 0, lambda token, leased: None)
        elif how == "acknowledge" and self._held():
            owner, fact = self._pick_out(pick)
            leased = fact.leased
            assert leased is not None
            self.readers[owner].leases.acknowledge(
                owner, leased.topic, leased.queue_id, leased.offset, leased.handle
            )
        self.world.crash()

    @rule()
    def gather_for_a_snapshot(self) -> None:
        """Begin a snapshot, or go on with it: what happens meanwhile is in it or not."""
        tables = self.world.core.lease_tables
        with (
            mock.patch("onelog.core.durable.tables.PART_ENTRIES", 1),
            mock.patch("onelog.core.queues.leases.STEP_LEASES", 1),
            mock.patch("onelog.core.queues.lease_ledger.STEP_LEASES", 1),
        ):
            if tables._gathering is None:
                tables.snapshot()
            else:
                tables.snapshot_if_due()

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def as_many_leases_are_open_as_the_model_says(self) -> None:
        if hasattr(self, "folder"):
            assert len(self.world.core.leases) == len(self._out())

    @invariant()
    def cursors_are_at_the_first_message_that_is_not_finished(self) -> None:
        for group, facts in getattr(self, "facts", {}).items():
            for queue_id in range(QUEUES):
                cursor = self.readers[group].cursor(queue_id)
                if cursor is not None:
                    unfinished = [
                        fact.offset
                        for fact in facts.values()
                        if fact.queue_id == queue_id and not self._finished(group, fact)
                    ]
                    end = self.world.store.max_offset("orders", queue_id)
                    assert cursor == min(unfinished, default=end)

    def _finished(self, group: str, fact: Fact) -> bool:
        moved = group == "retried" and fact.times > 0
        return moved or fact.state in ("acknowledged", "dead")


LeaseMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, print_blob=True
)
