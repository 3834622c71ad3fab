"""Branches: what this broker has of transactions in place that another broker coordinates.

Queues of this broker can be in such a transaction, and groups that it looks after. The coordinator
says so before the first batch or position comes; later it says how the transaction ended. Then the
markers, the positions, and that the branch is no more are one append, as they are of transactions
that are coordinated here (`transactional_ids`).

    table     "branches": {producer id: {"epoch": n, "queues": [[topic, queue]],
              "groups": {group: {topic: {queue: [offset, epoch, text]}}}}}

Invariant: what has no branch has ended. So an end may be told any number of times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onelog.core.access import Access, Principal
from onelog.core.catalog.topics import Topics
from onelog.core.cursors.offset_notes import Note
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.tables import Change, Tables, in_parts
from onelog.core.membership.coordinator import CommittingMember, Coordinator, Position, Positions
from onelog.core.transactions.in_place import Stamp
from onelog.core.transactions.producers import BatchProducers, Queue
from onelog.core.transactions.transactional_ids import TransactionalIds
from onelog.errors import InvalidProducerEpochError, TransactionStateError

_Groups = dict[str, dict[str, dict[int, Position]]]


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """The part of one transaction."""

    producer_id: int
    epoch: int
    queues: frozenset[Queue] = frozenset()
    groups: _Groups = field(default_factory=dict)
    """Groups, and the positions that they will have."""


class Branches:
    """All branches of this broker. It is a part of the door, too."""

    name = "branches"

    def __init__(
        self,
        access: Access,
        tables: Tables,
        topics: Topics,
        producers: BatchProducers,
        coordinator: Coordinator,
        own: TransactionalIds,
    ) -> None:
        self.access = access
        self._tables = tables
        self._topics = topics
        self._coordinator = coordinator
        self._own = own
        self._branches: dict[int, Branch] = {}
        self._covers_own, producers.covers = producers.covers, self._covers
        self._pending_own, coordinator.pending = coordinator.pending, self._pending

    def __len__(self) -> int:
        return len(self._branches)

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._branches.pop(int(key), None)
        else:
            self._branches[int(key)] = _restored(int(key), value)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every branch; some at a time."""
        for part in in_parts(self._branches):
            yield {str(producer_id): _kept(each) for producer_id, each in part}

    def _record(self, branch: Branch) -> None:
        self._tables.write([(self.name, str(branch.producer_id), _kept(branch))])

    # -- what the coordinator says -------------------------------------------------------------

    def join(
        self, principal: Principal, producer_id: int, epoch: int, queues: Sequence[Queue]
    ) -> None:
        """A producer will send batches of its transaction to these queues, or positions."""
        self.access.check(principal, "alter", ("broker", "cluster"))
        for topic, _ in queues:
            self.access.check(principal, "publish", ("topic", topic))
        found = self._branches.get(producer_id)
        if found is None or found.epoch < epoch:
            # The coordinator ends a transaction everywhere before it begins the next one: what is
            # here from before was told so late that it has no batches.
            self._record(Branch(producer_id, epoch, frozenset(queues)))
        elif found.epoch != epoch:
            raise InvalidProducerEpochError(f"producer {producer_id} is at epoch {found.epoch}")
        elif not found.queues.issuperset(queues):
            self._record(replace(found, queues=found.queues.union(queues)))

    def end(
        self, principal: Principal, producer_id: int, epoch: int, commit: bool, when_safe: WhenSafe
    ) -> None:
        """The transaction has ended; calls back when that is as safe as configured."""
        self.access.check(principal, "alter", ("broker", "cluster"))
        found = self._branches.get(producer_id)
        if found is not None and found.epoch <= epoch:
            self._carry_out(found, epoch, commit)
        self._own.when_safe(when_safe)

    def _carry_out(self, branch: Branch, epoch: int, commit: bool) -> None:
        queues = [
            (topic, queue_id)
            for topic, queue_id in sorted(branch.queues)
            if (config := self._topics.get(topic)) is not None and queue_id < config.queues
        ]
        changes: list[Change] = [(self.name, str(branch.producer_id), None)]
        if commit:
            for group, positions in branch.groups.items():
                there = {
                    topic: each for topic, each in positions.items() if self._topics.get(topic)
                }
                changes += self._coordinator.committing(group, there)
        self._own.write_end(queues, branch.producer_id, epoch, commit, changes)

    # -- what producers do ---------------------------------------------------------------------

    def commit_offsets(
        self,
        principal: Principal,
        producer_id: int,
        epoch: int,
        group: str,
        member: CommittingMember,
        positions: Positions,
    ) -> None:
        """Positions that the group has if the transaction is committed."""
        self.access.check(principal, "consume", ("group", group))
        found = self._require(producer_id, epoch)
        if member != CommittingMember():
            self._coordinator.check_member(principal, group, member, in_transaction=True)
        pending = dict(found.groups.get(group, {}))
        for topic, queues in positions.items():
            pending[topic] = {**pending.get(topic, {}), **queues}
        self._record(replace(found, groups={**found.groups, group: pending}))

    def _require(self, producer_id: int, epoch: int) -> Branch:
        found = self._branches.get(producer_id)
        if found is None:
            raise TransactionStateError(f"producer {producer_id} has no transaction here")
        if found.epoch != epoch:
            raise InvalidProducerEpochError(
                f"producer {producer_id} is at epoch {found.epoch}, not at {epoch}"
            )
        return found

    # -- what others ask -----------------------------------------------------------------------

    def _covers(self, stamp: Stamp, queue: Queue) -> None:
        """Raises what is wrong with a batch of a transaction, if it is in none."""
        if stamp.producer_id not in self._branches:
            self._covers_own(stamp, queue)
        elif queue not in self._require(stamp.producer_id, stamp.epoch).queues:
            raise TransactionStateError(f"{queue} is not in a transaction of this producer")

    def _pending(self, group: str) -> list[Positions]:
        """Where transactions that have not ended will move a group."""
        return self._pending_own(group) + [
            each.groups[group] for each in self._branches.values() if group in each.groups
        ]


def _kept(branch: Branch) -> dict[str, Any]:
    return {
        "epoch": branch.epoch,
        "queues": sorted(list(each) for each in branch.queues),
        "groups": {
            group: {
                topic: {str(at): [each.offset, *each.note] for at, each in queues.items()}
                for topic, queues in topics.items()
            }
            for group, topics in branch.groups.items()
        },
    }


def _restored(producer_id: int, kept: dict[str, Any]) -> Branch:
    groups: _Groups = {
        group: {
            topic: {
                int(at): Position(offset, Note(epoch, text))
                for at, (offset, epoch, text) in queues.items()
            }
            for topic, queues in topics.items()
        }
        for group, topics in kept["groups"].items()
    }
    queues = frozenset((each[0], each[1]) for each in kept["queues"])
    return Branch(producer_id, kept["epoch"], queues, groups)
