"""Where the queues of topics are: asked of the name servers once, remembered, and kept fresh.

A topic that was asked for once is asked for again every 30 s; a route that was found stays in use
while the name servers cannot be reached or have lost it, because brokers outlive them.

Invariant: a `Route` never changes; a new one takes its place, and the functions in `on_change` are
called. However many callers want an unknown topic, the name servers are asked once.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from onelog.client.admin.cluster import MASTER_ID, BrokerSet, broker_set
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Nodes, SharedWork, at_once, forgiven
from onelog.client.message import Queue
from onelog.errors import BrokerNotFoundError, TopicNotFoundError
from onelog.jobs import Job
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.routes import TopicRouteData

REFRESH_SECONDS = 30.0
MASTERLESS_SECONDS = 3.0
"""The same, for a topic with a broker that nobody can write to: its master may be back soon."""
QUEUES = 4
"""Of a topic that comes into being on demand, if nobody says how many."""

PERM_WRITE = 2
PERM_READ = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Route:
    """The queues of one topic, and the brokers that have them."""

    topic: str
    publish_queues: tuple[Queue, ...]
    """Those that can be written to, in an order that is the same for all clients."""
    read_queues: tuple[Queue, ...]
    brokers: Mapping[str, BrokerSet]
    is_default: bool = False
    """Whether the topic does not exist yet, and this is where it would come into being."""
    writable: frozenset[str] = field(init=False)
    """The names of the brokers that take messages."""

    def __post_init__(self) -> None:
        names = frozenset(queue.broker for queue in self.publish_queues)
        object.__setattr__(self, "writable", names)

    @property
    def lacks_master(self) -> bool:
        """Whether a broker can be read from only: a slave may be there in its master's place."""
        return not self.writable.issuperset(queue.broker for queue in self.read_queues)

    def address(self, broker: str) -> Address:
        """The address of a master by its name; `BrokerNotFoundError` if it is not known."""
        brokers = self.brokers.get(broker)
        if brokers is None or brokers.master is None:
            what = "broker" if brokers is None else "master"
            raise BrokerNotFoundError(
                f"the route of topic {self.topic!r} has no {what} named {broker!r} now"
            )
        return brokers.master

    def reading_address(
        self, broker: str, *, broker_id: int = MASTER_ID, suspects: Collection[Address] = ()
    ) -> Address:
        """Where to read from: the broker with that id if it is known, else any of its set; one
        that is not suspect, if there is such a one.
        """
        brokers = self.brokers.get(broker)
        if brokers is None:
            return self.address(broker)
        wanted = dict(brokers.members).get(broker_id) or brokers.preferred
        if wanted in suspects:
            others = (address for _, address in brokers.members if address not in suspects)
            return next(others, wanted)
        return wanted


class RouteCache:
    """The routes of one client. Topics have their full names, with a namespace if there is one."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._routes: dict[str, Route] = {}
        self._asking: SharedWork[str, Route] = SharedWork()
        self._default_queues: dict[str, int] = {}
        """How many queues topics shall have that do not exist yet."""
        self.on_change: list[Callable[[str, Route], None]] = []

    def known(self, topic: str) -> Route | None:
        return self._routes.get(topic)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._routes)

    def brokers(self) -> dict[str, BrokerSet]:
        """All brokers of the topics in use, by name."""
        return {
            name: brokers
            for route in self._routes.values()
            for name, brokers in route.brokers.items()
        }

    async def get(self, topic: str) -> Route:
        """The route of a topic that exists; `TopicNotFoundError` if it does not."""
        route = self._routes.get(topic)
        if route is None or route.is_default:
            return await self.refresh(topic)
        return route

    async def get_for_sending(
        self, topic: str, queues: int = QUEUES, *, fresh: bool = False
    ) -> Route:
        """The same, and for a topic that does not exist, where it would come into being."""
        route = self._routes.get(topic)
        if route is not None and route.publish_queues and not fresh:
            return route
        try:
            return await self.refresh(topic)
        except TopicNotFoundError as missing:
            self._default_queues[topic] = queues
            return await self._default_route(topic, queues, missing)

    async def refresh(self, topic: str) -> Route:
        """Ask the name servers now; a route that is known stays if they do not know."""
        return await self._asking.get(topic, self._ask)

    async def keep_fresh(self) -> None:
        """Refresh all topics in use, again and again; ends by being cancelled."""
        job = Job("refreshing the routes")
        due = time.monotonic() + REFRESH_SECONDS
        while True:
            await asyncio.sleep(MASTERLESS_SECONDS)
            topics = [each.topic for each in self._routes.values() if each.lacks_master]
            if time.monotonic() >= due:
                topics, due = list(self._routes), time.monotonic() + REFRESH_SECONDS
            with job:
                await at_once(self.refresh_quietly, topics)

    async def refresh_quietly(self, topic: str) -> None:
        """Refresh one topic; if that fails, its route stays as it was."""
        route = self._routes.get(topic)
        with forgiven(log, "the route of %s stays as it was", topic, level=logging.DEBUG):
            if route is not None and route.is_default:
                await self.get_for_sending(topic, self._default_queues[topic], fresh=True)
            else:
                await self.refresh(topic)

    async def close(self) -> None:
        await self._asking.close()

    async def _ask(self, topic: str) -> Route:
        route = route_of(topic, await self._fetch(topic))
        self._default_queues.pop(topic, None)
        self._keep(route)
        return route

    async def _fetch(self, topic: str) -> TopicRouteData:
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            return await self._nodes.fetch_nameserver(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRouteData, ext
            )
        except TopicNotFoundError:
            nameserver = self._nodes.nameservers[0]
            raise TopicNotFoundError(
                f"topic {topic!r} does not exist: name server {nameserver} knows no broker that "
                f"has it"
            ) from None

    async def _default_route(self, topic: str, queues: int, missing: TopicNotFoundError) -> Route:
        try:
            data = await self._fetch(DEFAULT_TOPIC)
        except TopicNotFoundError:
            raise TopicNotFoundError(
                f"{missing}, and none that would create it on demand"
            ) from None
        route = route_of(topic, data, queues)
        if not route.publish_queues:
            raise missing
        try:
            # A broker with the topic may have registered between the two questions.
            return await self.refresh(topic)
        except TopicNotFoundError:
            self._keep(route)
            return route

    def _keep(self, route: Route) -> None:
        if self._routes.get(route.topic) != route:
            self._routes[route.topic] = route
            for changed in self.on_change:
                changed(route.topic, route)


def route_of(topic: str, data: TopicRouteData, default_queues: int | None = None) -> Route:
    """The route that a name server's answer means.

    With `default_queues` the answer is about the default topic, and the route says where a topic
    would come into being with so many queues at the most.
    """
    brokers = {each.broker_name: broker_set(each) for each in data.broker_datas}
    masters = {name for name, brokers_of in brokers.items() if brokers_of.master is not None}
    is_default = default_queues is not None
    publish, read = [], []
    for each in sorted(data.queue_datas, key=lambda each: each.broker_name):
        queues = [
            Queue(topic, each.broker_name, number)
            for number in range(max(each.write_queue_nums, each.read_queue_nums))
        ]
        if each.perm & PERM_WRITE and each.broker_name in masters:
            publish += queues[: each.write_queue_nums][:default_queues]
        if each.perm & PERM_READ and not is_default:
            read += queues[: each.read_queue_nums]
    if data.order_topic_conf and not is_default:
        publish = _ordered_queues(topic, data.order_topic_conf)
    return Route(topic, tuple(publish), tuple(read), brokers, is_default)


def _ordered_queues(topic: str, order: str) -> list[Queue]:
    """The queues that `broker-a:4;broker-b:2` names: fixed, whoever is down."""
    queues = []
    for part in filter(None, order.split(";")):
        broker, _, count = part.partition(":")
        queues += [Queue(topic, broker, number) for number in range(int(count or 0))]
    return queues
