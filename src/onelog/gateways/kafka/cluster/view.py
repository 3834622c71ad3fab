"""What this broker knows of its cluster: the brokers, where partitions are, who coordinates what.

A broker that is alone has all partitions, each in the queue of its number, and coordinates
everything. In a cluster, every broker has every topic, with the queues that are its own; maybe
none. Groups and transactional ids fall into slots by their names, and each slot has a broker, which
was chosen when the slot was first asked for, and stays.

Invariant: nothing here waits for anybody; what is known comes in from `agreement`.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onelog.core.catalog.placements import Placement, TopicPlacement
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.offsets import REMOTE_QUEUES
from onelog.errors import NotCoordinatorError, NotLeaderError, TopicNotFoundError
from onelog.gateways import ReplicaStatus
from onelog.names import VIEW_PARTITIONS, VIEW_TOPICS
from onelog.wire.kafka.schema import Fields

SLOTS = 64
"""Of coordinators: as many brokers can have a part in coordinating."""
TOPIC_KEY, NODE_KEY, COORDINATOR_KEY = "topic/", "node/", "coordinator/"
GROUP_KEY, CONFIG_KEY = "group/", "config/"
"""What keys of the register begin with; behind it is a topic, a node's number, a slot, a group, or
what settings are of (`kept_settings`)."""


_ALL_OF_VIEWS = list(range(VIEW_PARTITIONS))


class KafkaNode(NamedTuple):
    """A broker, as Kafka's clients are told of it."""

    node_id: int
    name: str
    host: str
    port: int


class Proposal(NamedTuple):
    """A change that all brokers have to agree on."""

    key: str
    text: str
    result: Fields
    """The part of an answer that tells how it went."""


class Cluster:
    """All of that, for one broker."""

    def __init__(
        self,
        node_id: int,
        here: Callable[[], KafkaNode],
        alone_id: int = 0,
        successors: Callable[[], Sequence[KafkaNode]] = tuple,
        replica_status: ReplicaStatus | None = None,
    ) -> None:
        """`alone_id` is its number if it has none of a cluster: nodes of a replica set differ.

        `successors` are these nodes: they serve nobody before they are master in its place.
        """
        self.is_alone = node_id < 0
        self.node_id = alone_id if self.is_alone else node_id
        self._here = here
        self._successors = successors
        self.replica_status = replica_status or ReplicaStatus()
        self.follows = self.is_alone and bool(self.replica_status.broker_id)
        """Whether this node follows the master of its set: it only says where that one is."""
        self.nodes: dict[int, KafkaNode] = {}
        """Those that ever were in the cluster."""
        self.live = frozenset((self.node_id,))
        """Those that are there now."""
        self.placed: dict[str, TopicPlacement] = {}
        self.texts: dict[str, str] = {}
        """All that is agreed on, by key."""
        self.proposals: list[Proposal] = []
        """What the request that is being handled wants to change."""

    # -- brokers -------------------------------------------------------------------------------

    def brokers(self) -> list[KafkaNode]:
        """Those that can be reached now, in the order of their numbers."""
        if self.follows:
            return sorted([self._here(), *self._successors()])
        if self.is_alone:
            return [self._here()]
        return [each for number, each in sorted(self.nodes.items()) if number in self.live]

    @property
    def controller_id(self) -> int:
        """Whom clients shall ask to change topics; all others would do it, too."""
        return self.master_id if self.follows else min(self.live)

    @property
    def master_id(self) -> int:
        """The node that has everything: of a broker that is alone, or its set; -1 if none has."""
        if not self.follows:
            return self.node_id
        master = self.replica_status.master()
        return -1 if master is None else master[0]

    def require_coordinator(self, name: str) -> None:
        """`NotCoordinatorError` if another broker looks after a group or transactional id."""
        if not self.is_alone and self.coordinator(name) != self.node_id:
            raise NotCoordinatorError(f"broker {self.node_id} does not look after {name[:60]!r}")

    def coordinator(self, name: str) -> int | None:
        """Who looks after a group or a transactional id; None if nobody has asked yet."""
        return self.master_id if self.is_alone else self.coordinator_of_slot(slot_of(name))

    def coordinator_of_slot(self, slot: int) -> int | None:
        """Who looks after a slot; None if nobody has asked yet."""
        node = self.texts.get(COORDINATOR_KEY + str(slot))
        return None if node is None else int(node)

    def is_listed(self, name: str) -> bool:
        """Whether this broker tells of a group: each group is told of by one."""
        return self.coordinator(name) in (None, self.node_id)

    def propose_coordinator(self, name: str, result: Fields) -> None:
        """Have somebody look after a group or transactional id from now on."""
        slot, live = slot_of(name), sorted(self.live)
        node = live[slot % len(live)]
        self.proposals.append(Proposal(COORDINATOR_KEY + str(slot), str(node), result))

    # -- partitions ----------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """Counts the masters of this broker's replica set; what others have is not known here."""
        if self.follows:
            return (self.replica_status.master() or (-1, 0))[1]
        return self.replica_status.epoch if self.is_alone else 0

    def copies(self, leader: int) -> Fields:
        """Which nodes have a partition of this leader, and which of them all of it."""
        in_sync = set(self.replica_status.in_sync()) if self.is_alone else set()
        there = {leader, *(self.replica_status.kafka_nodes() if self.is_alone else ())}
        others = sorted((there | in_sync) - {leader})
        return {
            "replica_nodes": [leader, *others],
            "isr_nodes": [leader, *sorted(in_sync - {leader})],
            "offline_replicas": [each for each in others if each not in there],
        }

    def partitions(self, topic: TopicConfig) -> int:
        """How many partitions a topic has."""
        if self.is_alone or topic.name in VIEW_TOPICS:
            return topic.queues
        placed = self.placed.get(topic.name)
        return 0 if placed is None else len(placed.nodes)

    def leaders(self, topic: TopicConfig) -> list[int]:
        """The broker of each partition, be it there or not."""
        if self.is_alone:
            return [self.master_id] * topic.queues
        if topic.name in VIEW_TOPICS:
            nodes = sorted(self.nodes) or [self.node_id]
            return [nodes[each % len(nodes)] for each in range(VIEW_PARTITIONS)]
        placed = self.placed.get(topic.name)
        return [] if placed is None else placed.nodes

    def queue(self, topic: TopicConfig, partition: int) -> int:
        """The queue of a partition; `NotLeaderError` if another broker has it."""
        if self.is_alone and 0 <= partition < topic.queues:
            return partition
        queue_id = self.queue_id_of(topic, partition)
        if queue_id >= REMOTE_QUEUES:
            raise NotLeaderError(f"another broker has partition {partition} of {topic.name}")
        return queue_id

    def queue_id_of(self, topic: TopicConfig, partition: int) -> int:
        """The same; a partition that another broker has is one behind all queues of this one."""
        if self.is_alone or topic.name in VIEW_TOPICS:
            if 0 <= partition < topic.queues:
                is_here = self.leaders(topic)[partition] == self.node_id
                return partition if is_here else REMOTE_QUEUES + partition
        else:
            placed = self.placed.get(topic.name)
            if placed is not None and 0 <= partition < len(placed.nodes):
                is_here = placed.nodes[partition] == self.node_id
                return placed.queues[partition] if is_here else REMOTE_QUEUES + partition
        raise TopicNotFoundError(f"topic {topic.name} has no partition {partition}")

    def partition(self, topic: str, queue_id: int) -> int | None:
        """The inverse of `queue_id`; None if no partition is there."""
        if self.is_alone or (topic in VIEW_TOPICS and queue_id < VIEW_PARTITIONS):
            return queue_id
        if queue_id >= REMOTE_QUEUES:
            return queue_id - REMOTE_QUEUES
        placed = self.placed.get(topic)
        known = () if placed is None else placed.partitions
        return known[queue_id] if queue_id < len(known) else None

    def leader(self, topic: TopicConfig, partition: int) -> int:
        """Who has a partition; -1 if that one is away."""
        node = self.leaders(topic)[partition]
        return node if node in self.live else -1

    def view_partitions(self) -> list[int]:
        """The partitions of Kafka's own topics that this broker has."""
        if self.is_alone:
            return _ALL_OF_VIEWS
        first = sorted(self.nodes).index(self.node_id) if self.node_id in self.nodes else 0
        return list(range(first, VIEW_PARTITIONS, max(1, len(self.nodes))))

    def endpoints(self) -> list[Fields]:
        """Where brokers are, and where one of them may be later."""
        nodes = self.brokers()
        if self.is_alone and not self.follows:
            nodes = sorted([*nodes, *self._successors()])
        return [{"node_id": each.node_id, "host": each.host, "port": each.port} for each in nodes]

    def put(self, topic: str, placement: Placement) -> None:
        self.placed[topic] = TopicPlacement(placement, self.node_id)

    # -- changing topics -----------------------------------------------------------------------

    def round(self, topic: str) -> list[int]:
        """The brokers that new partitions of a topic go round: not all topics begin at one."""
        live = sorted(self.live)
        first = zlib.crc32(topic.encode()) % len(live)
        return live[first:] + live[:first]

    def propose(self, topic: str, placement: Placement, result: Fields) -> None:
        """Have a topic be so on all brokers."""
        self.proposals.append(Proposal(TOPIC_KEY + topic, placement.encode(), result))


def slot_of(name: str) -> int:
    """The slot that a group or a transactional id falls into."""
    return zlib.crc32(name.encode()) % SLOTS
