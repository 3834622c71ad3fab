"""Where gRPC clients reach the brokers of a cluster, and which of a topic's queues each has.

Every broker puts its own endpoint into the cluster's register, at the first name server, which also
knows the topics of each. What was asked is kept for a few seconds.

Invariant: every question is answered once; if the name server cannot be asked, with the last answer
that there was. A broker that is not in the register has no gRPC, and is left out.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from onelog.errors import OnelogError
from onelog.gateways import GatewayContext
from onelog.net.register import Register
from onelog.wire.remoting.routes import QueueData

log = logging.getLogger(__name__)

KEPT_SECONDS = 5.0
LOOK_SECONDS = 10.0
TOPICS_MAX = 10_000


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
        self._known: dict[str, tuple[float, list[OtherBroker]]] = {}
        self._asking: dict[str, list[OnFound]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_silent = False

    async def start(self) -> None:
        """Register our endpoint; then go on by itself."""
        if self._config.nameserver_addresses:
            await self._look()
            self._spawn(self._run())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

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
        since, known = self._known.get(topic, (0.0, []))
        if not self._config.nameserver_addresses or time.monotonic() - since < KEPT_SECONDS:
            then(known)
        elif topic in self._asking:
            self._asking[topic].append(then)
        else:
            self._asking[topic] = [then]
            self._spawn(self._ask(topic))

    async def _ask(self, topic: str) -> None:
        try:
            route = await self._register.route(topic)
            if not route.keys() - {self._config.name} <= self._addresses.keys():
                await self._look()
            found = []
            for name, queues in sorted(route.items()):
                host, _, port = self._addresses.get(name, "").partition(" ")
                if name != self._config.name and port.isdecimal():
                    found.append(OtherBroker(name, host, int(port), queues))
            if len(self._known) >= TOPICS_MAX:
                self._known.clear()
            self._known[topic] = (time.monotonic(), found)
        except OnelogError as error:
            log.info("the name server does not say where topic %s is: %s", topic, error)
        finally:
            for then in self._asking.pop(topic):
                then(self._known.get(topic, (0.0, []))[1])

    async def close(self) -> None:
        """Stop asking."""
        for task in list(self._tasks):
            task.cancel()
        await self._register.close()
