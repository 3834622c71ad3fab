"""Where the partitions of topics are, of protocols that number them over all brokers of a cluster.

Partition p is the p-th (broker, queue) of its topic's placement. Queues of a broker are taken in
their order, so a placement says which broker is next, in runs that go round some brokers:

    runs [[5, [0, 1]], [2, [2]]]    partitions 0 to 4 are on 0 1 0 1 0, partitions 5 and 6 on 2 2

A placement is agreed on elsewhere; this broker keeps what it knows of it (`TopicTexts`).

Invariant: a placement only grows, for as long as its topic lives.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import msgspec


@dataclass(frozen=True, slots=True)
class Placement:
    """The partitions of one topic, and what else all brokers must know of it."""

    created_ms: int
    """When the topic came into being: the same on all brokers."""
    runs: list[tuple[int, list[int]]]
    attributes: dict[str, str] = field(default_factory=dict)
    deleted_ms: int = 0
    """When it was deleted; 0 if it was not."""

    @property
    def nodes(self) -> list[int]:
        """The broker of each partition."""
        return [
            nodes[each % len(nodes)] for count, nodes in self.runs if nodes for each in range(count)
        ]

    def grown(self, count: int, nodes: Sequence[int]) -> "Placement":
        """The same with more partitions, which go round these brokers."""
        return replace(self, runs=[*self.runs, (count, list(nodes))])

    def grown_to(self, nodes: Sequence[int]) -> "Placement":
        """The same with more partitions, on these brokers one by one."""
        more = [(len(list(some)), [node]) for node, some in groupby(nodes)]
        return replace(self, runs=[*self.runs, *more])

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> "Placement":
        """The inverse; `msgspec.DecodeError` if it is none."""
        return msgspec.json.decode(text, type=Placement)


class TopicPlacement:
    """A placement as one broker looks things up in it."""

    __slots__ = ("nodes", "partitions", "placement", "queues")

    def __init__(self, placement: Placement, node_id: int) -> None:
        self.placement = placement
        self.nodes = placement.nodes
        counts: Counter[int] = Counter()
        self.queues: list[int] = []
        """The queue of each partition, on its broker."""
        self.partitions: list[int] = []
        """The partition of each queue on this broker."""
        for partition, node in enumerate(self.nodes):
            self.queues.append(counts[node])
            counts[node] += 1
            if node == node_id:
                self.partitions.append(partition)
