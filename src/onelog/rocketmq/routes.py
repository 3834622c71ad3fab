"""Where the queues of a topic are on all brokers, as the name servers say.

A broker needs that to share queues out among the members of a group, and to tell clients of gRPC.
It asks when it is asked, and keeps the answer for a few seconds.

Invariant: every question is answered once, also if no name server can be reached: then with the
last answer that there was, if any. What a broker knows of its own topics is newer than any answer.
"""

import logging
from collections.abc import Callable

from onelog.config import BrokerConfig
from onelog.errors import OnelogError, PeerClosedError
from onelog.net.peer import Peer
from onelog.net.tasks import Tasks
from onelog.net.tls import Tls
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.routes import QueueData, TopicRouteData

log = logging.getLogger(__name__)

KEPT_MS = 5_000
TOPICS_MAX = 10_000
TIMEOUT_MS = 900
"""A client waits three seconds for its answer, and there may be several name servers."""

Address = tuple[str, int]
Queues = dict[str, QueueData]
"""The queues of a topic, by the name of the broker."""
OnFound = Callable[[Queues], None]


class Routes:
    """The routes that one broker has asked for."""

    def __init__(
        self, config: Callable[[], BrokerConfig], now_ms: Callable[[], int], tls: Tls
    ) -> None:
        self._config = config
        self._tls = tls
        self._now_ms = now_ms
        self._known: dict[str, tuple[int, Queues]] = {}
        self._asking: dict[str, list[OnFound]] = {}
        self._tasks = Tasks()
        self._peer: Peer | None = None
        self._answers: Address | None = None
        """The name server at the other end of `_peer`."""

    def find(self, topic: str, then: OnFound) -> None:
        """Hand over the topic's queues on all brokers; at once if they are known."""
        since_ms, known = self._known.get(topic, (-KEPT_MS, {}))
        if not self._config().nameserver_addresses or self._now_ms() - since_ms < KEPT_MS:
            then(known)
        elif topic in self._asking:
            self._asking[topic].append(then)
        else:
            self._asking[topic] = [then]
            self._tasks.spawn(self._ask_somebody(topic))

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
                then(self._known.get(topic, (0, {}))[1])

    def _addresses(self) -> list[Address]:
        """The name servers, the one that answered last before the others."""
        addresses = self._config().nameserver_addresses
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
        found = TopicRouteData.decode(answer.body).queue_datas
        return {data.broker_name: data for data in found}

    async def close(self) -> None:
        """Stop asking."""
        self._tasks.cancel()
        if self._peer is not None:
            await self._peer.close()
