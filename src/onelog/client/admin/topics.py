"""Topics: where they are, how they are set, what is in them, and changing that.

A topic is set on each of its brokers; name servers only repeat what brokers register. So changes
go to the masters, and what is deleted there is deleted from the name servers as well.

`Bindings` say which topics of MQTT flow into which topics, and back.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from onelog.client.admin.cluster import BrokerSet, Clusters, broker_set, masters_of
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Failure, Nodes
from onelog.client.synchronous import Part, waiting
from onelog.errors import BrokerNotFoundError, TopicExistsError, TopicNotFoundError
from onelog.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.wire.remoting.bindings import BindingList
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.groups import GroupList
from onelog.wire.remoting.registration import TopicConfig, TopicTable
from onelog.wire.remoting.routes import TopicList, TopicRouteData
from onelog.wire.remoting.stats import TopicStatsTable

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
QUEUES = 8
PERM_READ_WRITE = 6
ROUTE_POLL_MS = 50

_NOT_SUPPORTED = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED.value})
_NO_SUCH_KEY = frozenset({ResponseCode.QUERY_NOT_FOUND.value, ResponseCode.SYSTEM_ERROR.value})


class TopicKind(StrEnum):
    """Whose a topic is."""

    USER = "user"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic, and whose it is."""

    name: str
    kind: TopicKind


@dataclass(frozen=True, slots=True)
class RoutedBroker:
    """A topic's queues on the brokers of one name."""

    brokers: BrokerSet
    read_queues: int
    write_queues: int
    perm: int


@dataclass(frozen=True, slots=True)
class Route:
    """Where a topic is. `order` is the queues per broker that an ordered topic is pinned to."""

    topic: str
    brokers: tuple[RoutedBroker, ...]
    order: str

    @property
    def sources(self) -> dict[str, Address]:
        """Where to ask about the topic, by the name of the broker."""
        return {each.brokers.name: each.brokers.preferred for each in self.brokers}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How a topic is set on one broker."""

    broker: str
    attributes: dict[str, str]
    read_queues: int
    write_queues: int
    perm: int
    """RocketMQ's bits: 4 to read, 2 to write, 1 inherited."""
    order: bool
    filter_type: str
    sys_flag: int


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What to set on a topic; None leaves a setting as it is."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    attributes: dict[str, str | None] = field(default_factory=dict)
    """None takes an attribute away."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What one queue holds: the offsets from `min_offset` up to, not including, `max_offset`."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    updated_ms: int

    @property
    def count(self) -> int:
        """How many messages that is."""
        return max(0, self.max_offset - self.min_offset)


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """What a topic holds, as far as its brokers answered."""

    topic: str
    queues: tuple[QueueRange, ...]
    put_rate: float
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """All there is to know about a topic."""

    route: Route
    settings: tuple[TopicSettings, ...]
    status: TopicStatus
    groups: tuple[str, ...]
    failures: tuple[Failure, ...]


@dataclass(eq=False)
class Topics:
    """Questions about topics, and changes to them."""

    _nodes: Nodes
    _clusters: Clusters

    async def names(self, cluster: str | None = None) -> tuple[TopicName, ...]:
        """All topics, or those of one cluster, by name."""
        code, ext = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}
        if cluster is not None:
            await self._clusters.brokers(cluster)  # It must be there, be it without topics.
            code, ext = RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster}
        listed = await self._nodes.fetch_nameserver(code, TopicList, ext)
        system = await self._system_names()
        return tuple(TopicName(name, _kind(name, system)) for name in sorted(listed.topic_list))

    async def _system_names(self) -> frozenset[str]:
        known = await self._nodes.fetch_nameserver(
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, TopicList
        )
        code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        fetched = await self._nodes.fetch_all(await self._clusters.sources(), code, TopicList, {})
        return frozenset(known.topic_list).union(
            *(each.topic_list for each in fetched.answers.values())
        )

    async def route(self, topic: str) -> Route:
        """Where the topic is; `TopicNotFoundError` if it is nowhere."""
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            data = await self._nodes.fetch_nameserver(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRouteData, ext
            )
        except TopicNotFoundError as error:
            raise TopicNotFoundError(f"there is no topic {topic}: {error}") from None
        sets = {each.broker_name: each for each in data.broker_datas if each.broker_addrs}
        brokers = [
            RoutedBroker(
                broker_set(sets[queues.broker_name]),
                queues.read_queue_nums,
                queues.write_queue_nums,
                queues.perm,
            )
            for queues in data.queue_datas
            if queues.broker_name in sets
        ]
        if not brokers:
            raise TopicNotFoundError(f"topic {topic} has no broker now")
        brokers.sort(key=lambda each: each.brokers.name)
        return Route(topic, tuple(brokers), data.order_topic_conf or "")

    async def status(self, topic: str) -> TopicStatus:
        """What its queues hold, on every broker of its route."""
        return await self._status(await self.route(topic))

    async def _status(self, route: Route) -> TopicStatus:
        code, ext = RequestCode.GET_TOPIC_STATS_INFO, {"topic": route.topic}
        gathered = await self._nodes.fetch_all(route.sources, code, TopicStatsTable, ext)
        queues = [
            QueueRange(
                broker,
                queue.queue_id,
                found.min_offset,
                found.max_offset,
                found.last_update_timestamp,
            )
            for broker, answer in gathered.answers.items()
            for queue, found in answer.offset_table.items()
        ]
        queues.sort(key=lambda each: (each.broker, each.queue_id))
        rate = sum(answer.topic_put_tps for answer in gathered.answers.values())
        return TopicStatus(route.topic, tuple(queues), rate, gathered.failures)

    async def _settings(self, address: Address, topic: str) -> TopicConfig:
        answer = await self._nodes.ask(
            address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic}, accept=_NOT_SUPPORTED
        )
        if answer.code == ResponseCode.SUCCESS:
            return TopicConfig.decode(answer.body)
        # 4.9 has only the question for all topics.
        table = await self._nodes.fetch(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicTable)
        try:
            return table.topic_config_table[topic]
        except KeyError:
            raise TopicNotFoundError(f"{address} has no topic {topic}") from None

    async def groups(self, topic: str) -> tuple[str, ...]:
        """The consumer groups that read it, now or by a position that they keep."""
        return (await self._groups(await self.route(topic)))[0]

    async def _groups(self, route: Route) -> tuple[tuple[str, ...], tuple[Failure, ...]]:
        code, ext = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": route.topic}
        gathered = await self._nodes.fetch_all(route.sources, code, GroupList, ext)
        names = {name for answer in gathered.answers.values() for name in answer.group_list}
        return tuple(sorted(names)), gathered.failures

    async def describe(self, topic: str) -> TopicDescription:
        """Route, settings, queues and groups of one topic."""
        route = await self.route(topic)
        settings = await self._nodes.gather(
            route.sources, lambda address: self._settings(address, topic)
        )
        status = await self._status(route)
        groups, failures = await self._groups(route)
        return TopicDescription(
            route,
            tuple(_settings(broker, found) for broker, found in settings.answers.items()),
            status,
            groups,
            tuple(dict.fromkeys((*settings.failures, *status.failures, *failures))),
        )

    # Changes.

    async def create(
        self,
        topic: str,
        change: TopicChange,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> tuple[str, ...]:
        """Create a topic on the masters of a cluster, or on one broker; on which it was."""
        masters = await self._clusters.masters(cluster, broker)
        if already := sorted((await self._write_queues(topic)).keys() & masters.keys()):
            raise TopicExistsError(f"topic {topic} exists already on {', '.join(already)}")
        fresh = TopicConfig(
            topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=PERM_READ_WRITE
        )
        await self._put({name: (address, fresh) for name, address in masters.items()}, change)
        await self._wait_for_route(topic, masters)
        return tuple(masters)

    async def update(
        self, topic: str, change: TopicChange, *, broker: str | None = None
    ) -> tuple[str, ...]:
        """Change a topic where it is, or on one of its brokers; on which it was."""
        route = await self.route(topic)
        sets = tuple(each.brokers for each in route.brokers if broker in (None, each.brokers.name))
        if not sets:
            raise BrokerNotFoundError(f"topic {topic} is not on broker {broker!r}")
        masters = masters_of(sets)
        current = {
            name: (address, await self._settings(address, topic))
            for name, address in masters.items()
        }
        await self._put(current, change)
        return tuple(masters)

    async def _put(
        self, current: Mapping[str, tuple[Address, TopicConfig]], change: TopicChange
    ) -> None:
        changed = {
            name: (address, _changed(old, change)) for name, (address, old) in current.items()
        }
        await self._nodes.change(
            changed,
            lambda each: self._nodes.ask(
                each[0], RequestCode.UPDATE_AND_CREATE_TOPIC, _request(each[1], change.attributes)
            ),
        )
        if change.order is None:
            return
        topic = next(iter(changed.values()))[1].topic_name
        if change.order:
            counts = {name: config.write_queue_nums for name, (_, config) in changed.items()}
            await self._pin_order(topic, counts)
        else:
            await self._forget_order(topic)

    async def _pin_order(self, topic: str, changed: Mapping[str, int]) -> None:
        """Tell name servers the queues of an ordered topic: its clients use these, dead or not."""
        counts = {**await self._write_queues(topic), **changed}
        pinned = ";".join(f"{name}:{count}" for name, count in sorted(counts.items()))
        await self._nodes.change_nameservers(
            RequestCode.PUT_KV_CONFIG, {"namespace": ORDER_NAMESPACE, "key": topic, "value": pinned}
        )

    async def _forget_order(self, topic: str) -> None:
        await self._nodes.change_nameservers(
            RequestCode.DELETE_KV_CONFIG,
            {"namespace": ORDER_NAMESPACE, "key": topic},
            accept=_NO_SUCH_KEY,
        )

    async def _wait_for_route(self, topic: str, masters: Mapping[str, Address]) -> None:
        """Brokers tell name servers of a new topic a moment later; do not return before that."""
        for _ in range(self._nodes.timeout_ms // ROUTE_POLL_MS):
            if masters.keys() <= (await self._write_queues(topic)).keys():
                return
            await asyncio.sleep(ROUTE_POLL_MS / 1000)
        # The topic is there all the same, and brokers register every 30 s.

    async def _write_queues(self, topic: str) -> dict[str, int]:
        """By the name of the broker; empty if the topic is nowhere."""
        try:
            route = await self.route(topic)
        except TopicNotFoundError:
            return {}
        return {each.brokers.name: each.write_queues for each in route.brokers}

    async def delete(self, topic: str, *, cluster: str | None = None) -> tuple[str, ...]:
        """Delete a topic and what is in it, everywhere or in one cluster; on which brokers."""
        route = await self.route(topic)
        sets = tuple(
            each.brokers for each in route.brokers if cluster in (None, each.brokers.cluster)
        )
        if not sets:
            raise TopicNotFoundError(f"topic {topic} is not in cluster {cluster!r}")
        masters = masters_of(sets)
        await self._nodes.change(
            masters,
            lambda address: self._nodes.ask(
                address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}
            ),
        )
        where = {} if cluster is None else {"clusterName": cluster}
        await self._nodes.change_nameservers(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic, **where}
        )
        if len(sets) == len(route.brokers):
            await self._forget_order(topic)
        return tuple(masters)


class SyncTopics(Part[Topics]):
    """The same for threads."""

    create = waiting(Topics.create)
    delete = waiting(Topics.delete)
    describe = waiting(Topics.describe)
    groups = waiting(Topics.groups)
    names = waiting(Topics.names)
    route = waiting(Topics.route)
    status = waiting(Topics.status)
    update = waiting(Topics.update)


def _kind(name: str, system: frozenset[str]) -> TopicKind:
    if name.startswith(RETRY_PREFIX):
        return TopicKind.RETRY
    if name.startswith(DEAD_LETTER_PREFIX):
        return TopicKind.DEAD_LETTER
    if name in system or name.startswith(SYSTEM_PREFIX):
        return TopicKind.SYSTEM
    return TopicKind.USER


def _settings(broker: str, config: TopicConfig) -> TopicSettings:
    return TopicSettings(
        broker=broker,
        attributes=config.attributes,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        perm=config.perm,
        order=config.order,
        filter_type=config.topic_filter_type,
        sys_flag=config.topic_sys_flag,
    )


def _changed(config: TopicConfig, change: TopicChange) -> TopicConfig:
    given = {
        "read_queue_nums": change.read_queues,
        "write_queue_nums": change.write_queues,
        "perm": change.perm,
        "order": change.order,
    }
    return msgspec.structs.replace(config, **{k: v for k, v in given.items() if v is not None})


def _request(config: TopicConfig, attributes: Mapping[str, str | None]) -> dict[str, str]:
    ext = {
        "topic": config.topic_name,
        "defaultTopic": DEFAULT_TOPIC,
        "readQueueNums": str(config.read_queue_nums),
        "writeQueueNums": str(config.write_queue_nums),
        "perm": str(config.perm),
        "topicFilterType": config.topic_filter_type,
        "topicSysFlag": str(config.topic_sys_flag),
        "order": "true" if config.order else "false",
    }
    if attributes:
        changes = (f"-{k}" if v is None else f"+{k}={v}" for k, v in attributes.items())
        ext["attributes"] = ",".join(changes)
    return ext


@dataclass(frozen=True, slots=True)
class Binding:
    """What flows from a filter of MQTT into a topic, or `back`: from a topic to one of MQTT's."""

    filter: str
    topic: str
    back: bool
    broker: str


@dataclass(eq=False)
class Bindings:
    """Bindings of all brokers of a cluster."""

    _nodes: Nodes
    _clusters: Clusters

    async def change(
        self,
        filter_: str,
        topic: str,
        *,
        back: bool = False,
        remove: bool = False,
        cluster: str | None = None,
    ) -> tuple[str, ...]:
        """Make a binding, or end one; on which brokers."""
        masters = await self._clusters.masters(cluster)
        ext = {"filter": filter_, "topic": topic}
        ext |= {name: "true" for name, on in (("back", back), ("remove", remove)) if on}
        await self._nodes.change(
            masters,
            lambda address: self._nodes.ask(address, RequestCode.CHANGE_BINDING, ext),
        )
        return tuple(masters)

    async def all(self, *, cluster: str | None = None) -> tuple[Binding, ...]:
        """Every binding."""
        masters = await self._clusters.masters(cluster)
        gathered = await self._nodes.fetch_all(masters, RequestCode.LIST_BINDINGS, BindingList, {})
        return tuple(
            Binding(each.filter, each.topic, each.back, broker)
            for broker, answer in gathered.answers.items()
            for each in answer.bindings
        )


class SyncBindings(Part[Bindings]):
    """The same for threads."""

    change = waiting(Bindings.change)
    all = waiting(Bindings.all)
