"""Where gRPC clients reach the brokers of a cluster, and which of a topic's queues each has.

Every broker puts its own endpoint into the cluster's register, at the first name server.

Invariant: every question is answered once (see `rocketmq.routes`). A broker that is not in the
register has no gRPC, and is left out.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from onelog.errors import OnelogError
from onelog.gateways import GatewayContext
from onelog.net.register import Register
from onelog.net.tasks import Tasks, repeat
from onelog.rocketmq.routes import Queues, Routes
from onelog.wire.remoting.routes import QueueData

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0


class OtherBroker(NamedTuple):
    """Another broker, and what it has of a topic."""

    name: str
    host: str
    port: int
    queues: QueueData


OnFound = Callable[[list[OtherBroker]], None]


class Endpoints:
    """The other brokers of one broker's cluster."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._config = context.broker.admin.config
        self._register = Register("GRPC", lambda: context.broker.admin.config, context.tls)
        self._addresses: dict[str, str] = {}
        self._routes = Routes(
            lambda: context.broker.admin.config, context.clock.now_ms, context.tls
        )
        self._tasks = Tasks()
        self._is_silent = False

    async def start(self) -> None:
        """Register our endpoint; then go on by itself."""
        if self._config.nameserver_addresses:
            await self._look()
            self._tasks.spawn(repeat("looking where brokers are", LOOK_SECONDS, self._look))

    async def _look(self) -> None:
        config = self._context.broker.admin.config
        here = f"{config.client_host} {self._context.loaded.config.grpc.port}"
        role = self._context.replica_status.broker_id
        is_master = (config.broker_id if role is None else role) == 0
        try:
            texts, _ = await self._register.load()
            if texts is not None:
                self._addresses = texts
            if is_master and (before := self._addresses.get(config.name, "")) != here:
                await self._register.put(config.name, here, before)
                self._addresses[config.name] = here
        except OnelogError as error:
            self._register.forget()
            if not self._is_silent:
                log.warning("the name server does not say where other brokers are: %s", error)
            self._is_silent = True
        else:
            self._is_silent = False

    def find(self, topic: str, then: OnFound) -> None:
        """Hand over the other brokers that have a topic; at once if they are known."""

        def found(route: Queues) -> None:
            if route.keys() - {self._config.name} <= self._addresses.keys():
                then(self._others(route))
            else:
                self._tasks.spawn(self._look_first(route, then))

        self._routes.find(topic, found)

    async def _look_first(self, route: Queues, then: OnFound) -> None:
        try:
            await self._look()
        finally:
            then(self._others(route))

    def _others(self, route: Queues) -> list[OtherBroker]:
        found = []
        for name, queues in sorted(route.items()):
            host, _, port = self._addresses.get(name, "").partition(" ")
            if name != self._config.name and port.isdecimal():
                found.append(OtherBroker(name, host, int(port), queues))
        return found

    async def close(self) -> None:
        """Stop asking."""
        self._tasks.cancel()
        await self._routes.close()
        await self._register.close()
