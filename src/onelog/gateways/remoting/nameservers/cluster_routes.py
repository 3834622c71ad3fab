"""Where the queues of a topic are on all brokers, as the name servers say.

A broker needs that to share queues out among the members of a group. It asks when it is asked, and
keeps the answer for a few seconds; what it knows of its own topics is newer than any answer.

Invariant: every question is answered once, also if no name server can be reached: then with the
last answer that there was, or with this broker's own queues.
"""

import asyncio
import logging
from collections.abc import Callable

from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.core.catalog.topics import PERM_READ
from onelog.errors import OnelogError, PeerClosedError
from onelog.net.peer import Peer
from onelog.net.tls import Tls
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.routes import TopicRouteData

log = logging.getLogger(__name__)

KEPT_MS = 10_000
TOPICS_MAX = 10_000
TIMEOUT_MS = 900
"""A client waits three seconds for its answer, and there may be several name servers."""

Address = tuple[str, int]
Queues = dict[str, int]
"""How many queues of a topic can be read, by the name of the broker."""
OnFound = Callable[[list[MessageQueue]], None]


class Routes:
    """The routes that one broker has asked for."""

    def __init__(self, broker: Broker, now_ms: Callable[[], int], tls: Tls) -> None:
        self._broker = broker
        self._tls = tls
        self._now_ms = now_ms
        self._known: dict[str, tuple[int, Queues]] = {}
        self._asking: dict[str, list[OnFound]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._peer: Peer | None = None
        self._answers: Address | None = None
        """The name server at the other end of `_peer`."""

    def find(self, topic: str, then: OnFound) -> None:
        """Hand over the topic's queues on all brokers, in order; at once if they are known."""
        addresses = self._broker.admin.config.nameserver_addresses
        known = self._known.get(topic)
        if not addresses or (known is not None and self._now_ms() - known[0] < KEPT_MS):
            then(self._queues(topic))
            return
        if topic in self._asking:
            self._asking[topic].append(then)
            return
        self._asking[topic] = [then]
        task = asyncio.create_task(self._ask_somebody(topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _queues(self, topic: str) -> list[MessageQueue]:
        _, queues = self._known.get(topic, (0, {}))
        own = self._broker.topics.find(SELF, topic)
        if own is not None:
            name = self._broker.admin.config.name
            queues = {**queues, name: own.read_queues if own.readable else 0}
        return [
            MessageQueue(broker_name=name, queue_id=queue_id, topic=topic)
            for name, count in sorted(queues.items())
            for queue_id in range(count)
        ]

    async def _ask_somebody(self, topic: str) -> None:
        try:
            for address in self._addresses():
                try:
                    queues = await self._ask(address, topic)
                except OnelogError as error:
                    log.warning("name server %s:%d gives no routes: %s", *address, error)
                    self._leave()
                else:
                    if len(self._known) >= TOPICS_MAX:
                        self._known.clear()
                    self._known[topic] = (self._now_ms(), queues)
                    break
        finally:
            for then in self._asking.pop(topic):
                then(self._queues(topic))

    def _addresses(self) -> list[Address]:
        """The name servers, the one that answered last before the others."""
        addresses = self._broker.admin.config.nameserver_addresses
        return sorted(addresses, key=lambda address: address != self._answers)

    def _leave(self) -> None:
        """A name server that does not answer may be half dead: ask it nothing more."""
        if self._peer is not None:
            self._peer.connection.close()
        self._peer = self._answers = None

    async def _ask(self, address: Address, topic: str) -> Queues:
        peer = self._peer
        if peer is None or not peer.is_open or address != self._answers:
            tls = await self._tls.client_context()
            peer = self._peer = await Peer.connect(*address, tls=tls, timeout_ms=TIMEOUT_MS)
            self._answers = address
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, b"", TIMEOUT_MS)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        if answer.code != ResponseCode.SUCCESS:
            raise PeerClosedError(f"it answered {answer.code}: {answer.remark}")
        route = TopicRouteData.decode(answer.body)
        return {
            data.broker_name: data.read_queue_nums
            for data in route.queue_datas
            if data.perm & PERM_READ
        }

    async def close(self) -> None:
        """Stop asking."""
        for task in list(self._tasks):
            task.cancel()
        if self._peer is not None:
            await self._peer.close()
