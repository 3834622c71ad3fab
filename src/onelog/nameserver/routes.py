"""Who is there, and which topics they have. Tables only: no sockets, and time is an argument.

A broker registers its topics over a connection that it keeps open (`channel` here, whatever that
is), again every 30 s or when something changed. It is gone when it says so, when its channel
closes, or when it was silent for its expiry time. Brokers that share a name are one master (id 0)
and its slaves; the name is what topics are spread over.

Invariants: every address in `_brokers` belongs to a name in `_clusters`; a topic in `_topics` has
at least one broker's queues, and is in `_topics_of` of each of these brokers. What clients are told
follows RocketMQ 5.5.0 to the letter, since they act on it.
"""

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onelog.rocketmq.names import MEMBER_TOPIC_PREFIX
from onelog.wire.remoting.registration import DataVersion, RegisterBrokerBody, TopicConfig
from onelog.wire.remoting.routes import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRouteData,
)

MASTER_ID = 0
PERM_WRITE = 2
PERM_READ = 4
UNIT_FLAG = 1
UNIT_SUBSCRIBED_FLAG = 2


class Endpoint(NamedTuple):
    """What one broker process is known by."""

    cluster: str
    address: str


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says when it registers."""

    endpoint: Endpoint
    name: str
    broker_id: int
    ha_address: str
    body: RegisterBrokerBody
    expiry_ms: int
    acting_master: bool | None = None
    """Whether a slave may act for a missing master; None from brokers too old to know."""
    zone: str | None = None


class Master(NamedTuple):
    """What a slave is told about its master; empty if it has none."""

    address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class _Live:
    updated_ms: int
    expiry_ms: int
    data_version: DataVersion
    channel: Hashable
    ha_address: str


@dataclass(slots=True)
class _Broker:
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None


class RouteTable:
    """The tables of one name server."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, set[str]] = {}
        """The topics of each broker, by its name: a loss of one must not look at all topics."""
        self._brokers: dict[str, _Broker] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[Endpoint, _Live] = {}
        self._filter_servers: dict[Endpoint, list[str]] = {}
        self._mappings: dict[str, dict[str, Any]] = {}
        self.acting_masters = True
        """Whether a slave is presented as the master where there is none."""
        self.delete_missing_topics = False
        """Whether a topic that a registration does not name is deleted from that broker."""

    # Brokers come and go.

    def register(self, registration: Registration, channel: Hashable, now_ms: int) -> Master | None:
        """Take a broker's registration; None if it must register all its topics first."""
        endpoint, name, broker_id = registration.endpoint, registration.name, registration.broker_id
        table = registration.body.topic_config_serialize_wrapper
        broker = self._brokers.get(name) or _Broker(endpoint.cluster)
        # An address has one id: a slave that became the master must not stay listed as slave.
        for old_id in [i for i, a in broker.addresses.items() if a == endpoint.address]:
            if old_id != broker_id:
                del broker.addresses[old_id]
        held_by = broker.addresses.get(broker_id, endpoint.address)
        holder = self._live.get(Endpoint(endpoint.cluster, held_by))
        if (
            held_by != endpoint.address
            and holder is not None
            and holder.data_version.state_version > table.data_version.state_version
        ):
            # Somebody newer has this id already: the caller is an old master, and not told so.
            self._live.pop(endpoint, None)
            return Master()
        if broker_id not in broker.addresses and len(table.topic_config_table) == 1:
            return None
        self._brokers[name] = broker
        self._clusters.setdefault(endpoint.cluster, set()).add(name)
        broker.acting_master = bool(registration.acting_master)
        broker.zone = registration.zone
        is_first = not broker.addresses.get(broker_id)
        broker.addresses[broker_id] = endpoint.address
        self._register_topics(registration, broker, is_first)
        self._live[endpoint] = _Live(
            now_ms, registration.expiry_ms, table.data_version, channel, registration.ha_address
        )
        if registration.body.filter_server_list:
            self._filter_servers[endpoint] = registration.body.filter_server_list
        else:
            self._filter_servers.pop(endpoint, None)
        return Master() if broker_id == MASTER_ID else self._master(broker)

    def _register_topics(self, registration: Registration, broker: _Broker, is_first: bool) -> None:
        is_prime_slave = (
            registration.acting_master is not None
            and registration.broker_id != MASTER_ID
            and registration.broker_id == min(broker.addresses)
        )
        if registration.broker_id != MASTER_ID and not is_prime_slave:
            return
        name = registration.name
        table = registration.body.topic_config_serialize_wrapper
        mappings = table.topic_queue_mapping_info_map or {}
        if self.delete_missing_topics and not mappings:
            self._remove_queues(
                self._topics_of.get(name, set()) - table.topic_config_table.keys(), name
            )
        is_changed = is_first or self.data_version(registration.endpoint) != table.data_version
        for topic in table.topic_config_table.values():
            # A broker that only repeats itself must not undo a wiped permission.
            if is_changed or name not in self._topics.get(topic.topic_name, {}):
                queues = _queue_data(name, topic)
                if is_prime_slave and broker.acting_master:
                    queues = _with_perm(queues, queues.perm & ~PERM_WRITE)
                self._add_queues(topic.topic_name, queues)
        if is_changed:
            for topic_name, mapping in mappings.items():
                owner = mapping.get("bname", name) if isinstance(mapping, dict) else name
                self._mappings.setdefault(topic_name, {})[owner] = mapping

    def _master(self, broker: _Broker) -> Master:
        address = broker.addresses.get(MASTER_ID)
        live = self._live.get(Endpoint(broker.cluster, address)) if address else None
        return Master(address, live.ha_address) if live is not None else Master()

    def unregister(self, endpoint: Endpoint, name: str) -> bool:
        """Forget a broker; whether it was there."""
        was_live = self._live.pop(endpoint, None) is not None
        self._filter_servers.pop(endpoint, None)
        broker = self._brokers.get(name)
        if broker is None:
            return was_live
        for broker_id in [i for i, a in broker.addresses.items() if a == endpoint.address]:
            del broker.addresses[broker_id]
        if not broker.addresses:
            del self._brokers[name]
            names = self._clusters.get(endpoint.cluster, set())
            names.discard(name)
            if not names:
                self._clusters.pop(endpoint.cluster, None)
            self._remove_queues(list(self._topics_of.get(name, ())), name)
        elif broker.acting_master and min(broker.addresses) > MASTER_ID:
            self._change_perm(name, lambda perm: perm & ~PERM_WRITE)
        return was_live

    def heartbeat(self, endpoint: Endpoint, now_ms: int) -> None:
        """A sign of life."""
        live = self._live.get(endpoint)
        if live is not None:
            live.updated_ms = now_ms

    def data_version(self, endpoint: Endpoint) -> DataVersion | None:
        """The version of the topics that a broker registered last."""
        live = self._live.get(endpoint)
        return None if live is None else live.data_version

    def channels(self, address: str) -> list[Hashable]:
        """Over which channels a broker at this address registered."""
        return [
            live.channel for endpoint, live in self._live.items() if endpoint.address == address
        ]

    def clusters_and_channels(self) -> Iterator[tuple[str, Hashable]]:
        """Of every broker its cluster, and over which channel it registered."""
        return ((endpoint.cluster, live.channel) for endpoint, live in self._live.items())

    def expire(self, now_ms: int) -> list[tuple[Endpoint, Hashable]]:
        """Drop the brokers that were silent for too long; those, and their channels."""
        gone = [
            (endpoint, live.channel)
            for endpoint, live in self._live.items()
            if live.updated_ms + live.expiry_ms < now_ms
        ]
        for endpoint, _ in gone:
            self._drop(endpoint)
        return gone

    def channel_closed(self, channel: Hashable) -> list[Endpoint]:
        """Drop the brokers that registered over this channel."""
        gone = [endpoint for endpoint, live in self._live.items() if live.channel == channel]
        for endpoint in gone:
            self._drop(endpoint)
        return gone

    def _drop(self, endpoint: Endpoint) -> None:
        for name, broker in self._brokers.items():
            if broker.cluster == endpoint.cluster and endpoint.address in broker.addresses.values():
                self.unregister(endpoint, name)
                return
        self._live.pop(endpoint, None)

    # Topics.

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Add one topic, all of whose brokers must be known; whether it was added."""
        added = {data.broker_name: data for data in queues}
        if not added or not added.keys() <= self._brokers.keys():
            return False
        for data in added.values():
            self._add_queues(topic, data)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or in one cluster."""
        names = self._clusters.get(cluster, ()) if cluster else list(self._topics.get(topic, ()))
        for name in names:
            self._remove_queues([topic], name)

    def wipe_write(self, name: str) -> int:
        """Let nobody write to a broker any more; the number of topics this is about."""
        return self._change_perm(name, lambda perm: perm & ~PERM_WRITE)

    def add_write(self, name: str) -> int:
        """Let everybody write to (and read from) a broker; the number of topics."""
        return self._change_perm(name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, name: str, change: Callable[[int], int]) -> int:
        topics = self._topics_of.get(name, ())
        for topic in topics:
            queues = self._topics[topic]
            queues[name] = _with_perm(queues[name], change(queues[name].perm))
        return len(topics)

    def _add_queues(self, topic: str, queues: QueueData) -> None:
        name = queues.broker_name
        self._topics.setdefault(topic, {})[name] = queues
        self._topics_of.setdefault(name, set()).add(topic)

    def _remove_queues(self, topics: Iterable[str], name: str) -> None:
        known = self._topics_of.get(name, set())
        for topic in topics:
            if topic in known:
                known.discard(topic)
                queues = self._topics[topic]
                del queues[name]
                if not queues:
                    del self._topics[topic]
        if not known:
            self._topics_of.pop(name, None)

    # Questions.

    def route(self, topic: str, zone: str | None = None) -> TopicRouteData | None:
        """Where a topic is; with a zone, without the masters of other zones."""
        queues = self._topics.get(topic)
        known = [name for name in queues or () if name in self._brokers]
        if queues is None or not known:
            return None
        names = [name for name in known if self._is_near(name, zone)]
        kept = queues.keys() - (set(known) - set(names))
        return TopicRouteData(
            broker_datas=[self._broker_data(name, topic) for name in names],
            filter_server_table=self._filter_servers_of(names),
            queue_datas=[data for name, data in queues.items() if name in kept],
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )

    def _is_near(self, name: str, zone: str | None) -> bool:
        broker = self._brokers[name]
        return (
            not zone
            or MASTER_ID not in broker.addresses
            or (broker.zone or "").lower() == zone.lower()
        )

    def _broker_data(self, name: str, topic: str) -> BrokerData:
        broker = self._brokers[name]
        addresses = dict(broker.addresses)
        # In the place of a missing master stands its first slave, if clients cannot write anyway.
        if (
            self.acting_masters
            and broker.acting_master
            and MASTER_ID not in addresses
            and not topic.startswith(MEMBER_TOPIC_PREFIX)
            and not self._topics[topic][name].perm & PERM_WRITE
        ):
            addresses[MASTER_ID] = addresses.pop(min(addresses))
        return _broker_data(name, broker, addresses)

    def _filter_servers_of(self, names: Iterable[str]) -> dict[str, list[str]]:
        if not self._filter_servers:
            return {}
        endpoints = [
            Endpoint(self._brokers[name].cluster, address)
            for name in names
            for address in self._brokers[name].addresses.values()
        ]
        return {
            endpoint.address: self._filter_servers[endpoint]
            for endpoint in endpoints
            if endpoint in self._filter_servers
        }

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        return ClusterInfo(
            broker_addr_table={
                name: _broker_data(name, broker, broker.addresses)
                for name, broker in self._brokers.items()
            },
            cluster_addr_table={
                cluster: sorted(names) for cluster, names in self._clusters.items()
            },
        )

    def members(self, cluster: str, name: str) -> BrokerMemberGroup:
        """The live brokers of a name."""
        broker = self._brokers.get(name)
        return BrokerMemberGroup(
            broker_addrs=dict(broker.addresses) if broker is not None else {},
            broker_name=name,
            cluster=cluster,
        )

    def topics(self) -> TopicList:
        return TopicList(topic_list=list(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """The topics that have queues in a cluster."""
        names = self._clusters.get(cluster, set())
        return TopicList(topic_list=[t for t, q in self._topics.items() if not names.isdisjoint(q)])

    def system_topics(self) -> TopicList:
        """The names of clusters and brokers, which are topics too, and one broker's address."""
        topics = [t for cluster, names in self._clusters.items() for t in (cluster, *sorted(names))]
        addresses = (a for broker in self._brokers.values() for a in broker.addresses.values())
        return TopicList(broker_addr=next(addresses, None), topic_list=topics)

    def topics_with_flags(self, present: int, absent: int = 0) -> TopicList:
        """The topics whose flags (of their first broker) include and lack these."""
        flags = {t: next(iter(q.values())).topic_sys_flag for t, q in self._topics.items()}
        return TopicList(topic_list=[t for t, f in flags.items() if f & present and not f & absent])


def _queue_data(name: str, topic: TopicConfig) -> QueueData:
    return _shared(
        name, topic.perm, topic.read_queue_nums, topic.topic_sys_flag, topic.write_queue_nums
    )


def _with_perm(queues: QueueData, perm: int) -> QueueData:
    return _shared(
        queues.broker_name,
        perm,
        queues.read_queue_nums,
        queues.topic_sys_flag,
        queues.write_queue_nums,
    )


@functools.lru_cache(maxsize=1 << 14)
def _shared(name: str, perm: int, read: int, flags: int, write: int) -> QueueData:
    """The queues of a topic on a broker: most topics of a broker have the same."""
    return QueueData(
        broker_name=name,
        perm=perm,
        read_queue_nums=read,
        topic_sys_flag=flags,
        write_queue_nums=write,
    )


def _broker_data(name: str, broker: _Broker, addresses: dict[int, str]) -> BrokerData:
    return BrokerData(
        broker_addrs=addresses,
        broker_name=name,
        cluster=broker.cluster,
        enable_acting_master=broker.acting_master,
        zone_name=broker.zone,
    )
