"""What is looked at in the end, when everything has become well and had its time."""

from collections.abc import Sequence
from typing import Any

import msgspec

from onelog.core.access import SELF
from onelog.core.durable.waiting import ANY_QUEUE
from onelog.core.queues.lending import Leased
from onelog.errors import OnelogError
from onelog.record.decode import decode_messages
from onelog.store.verify import verify
from tests.core.world import entries_of
from tests.simulation.checks import Promises, Settled
from tests.simulation.clients import LEASE_MS, LEASERS, TOPIC
from tests.simulation.kernel import BrokenError
from tests.simulation.node import Node


def logs_are_equal(settled: Settled, master: Node, nodes: Sequence[Node]) -> None:
    """All have the master's log, and all of it is confirmed."""
    end = master.log_end()
    settled.compare(master, end, may_grow=True)
    for node in nodes:
        if node.log_end() != end or node.settled() != end:
            raise BrokenError(
                f"{node.name} has {node.log_end()}, settled {node.settled()}; {master.name} {end}"
            )
        settled.compare(node, end, may_grow=False)


def queues_are_equal(settled: Settled, node: Node) -> None:
    """Every queue has what the log says, neither more nor less."""
    store = node.store
    assert store is not None
    for (topic, queue_id), bodies in settled.queues.items():
        end = int(store.max_offset(topic, queue_id))
        found = [bytes(each.body) for each in store.messages(topic, queue_id, 0, end)]
        known = [body for body in bodies if body]
        if found != known:
            raise BrokenError(
                f"{node.name}: queue {queue_id} of {topic} has {len(found)} messages of "
                f"{len(known)}, or others"
            )


def tables_are_equal(settled: Settled, node: Node) -> None:
    """What a node knows of topics, groups and transactional ids is what is recorded."""
    assert node.broker is not None
    for table in (node.core.topics, node.core.groups, node.broker.transactions.in_place):
        known = msgspec.json.decode(msgspec.json.encode(entries_of(table)))
        recorded = settled.tables.get(table.name, {})
        if known != recorded:
            keys = {key for key in known | recorded if known.get(key) != recorded.get(key)}
            raise BrokenError(f"{node.name}: {table.name} are not as recorded: {sorted(keys)}")


def positions_are_kept(promises: Promises, node: Node) -> None:
    """No group goes back behind what it was told to have committed."""
    assert node.broker is not None
    for place, offset in promises.positions.items():
        found = node.core.offsets.get(*place)
        if found is None or found < offset:
            raise BrokenError(f"{node.name}: {place} was committed at {offset}, is at {found}")


def nothing_done_comes_again(promises: Promises, node: Node) -> None:
    """All that can be leased is leased: nothing that was acknowledged is among it."""
    broker = node.broker
    assert broker is not None
    got: list[int] = []

    def leased(token: Any, found: Leased | OnelogError) -> None:
        if isinstance(found, OnelogError):
            raise BrokenError(f"{node.name}: nothing can be leased: {found}")
        for part in found.parts:
            records = [each for one in part.records for each in decode_messages(one)]
            for offset, message in zip(part.offsets, records, strict=True):
                got.append(1)
                place = (part.topic, part.queue_id, offset)
                promises.was_leased(bytes(message.body), place, int(message.log_offset))

    before = -1
    while len(got) > before:
        before = len(got)
        request = node.pop.request(LEASERS, TOPIC, ANY_QUEUE, 32, LEASE_MS)
        node.run(lambda request=request: broker.queues.lease(SELF, request, 0, leased))  # type: ignore[misc]
        node.run(node.end_tick)


def files_are_right(node: Node) -> None:
    """The store of a node that was stopped cleanly has no fault."""
    found = verify(node.disk.folder, index_slots=node.config.index_slots)
    if not found.clean:
        raise BrokenError(f"{node.name}: {found.problems[:3]}")
