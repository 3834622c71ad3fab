"""AMQP on its port. What serves it is imported when the first client comes."""

import asyncio
from typing import TYPE_CHECKING

from onelog.config_sources import Loaded
from onelog.gateways import GatewayContext
from onelog.net.connection import Connection
from onelog.net.tasks import repeat

if TYPE_CHECKING:
    from onelog.gateways.amqp.session import AmqpSession, Gateway

TICK_SECONDS = 1.0
"""How often signs of life, late handshakes and the disk are looked at."""


def _gateway() -> "type[Gateway]":
    from onelog.gateways.amqp.session import Gateway

    return Gateway


class AmqpGateway:
    """Its port, and what its sessions share once there is one."""

    def __init__(self, context: GatewayContext) -> None:
        self.context = context
        self.shared: Gateway | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Open its port."""
        await self.context.listen(self.context.loaded.config.amqp.port, self._session, _gateway)

    def _session(self, connection: Connection) -> "AmqpSession":
        from onelog.gateways.amqp.session import AmqpSession

        if self.shared is None:
            self.shared = _gateway()(self.context)
            self.context.clients = self.shared.clients
            ticking = repeat("signs of life of AMQP's clients", TICK_SECONDS, self.shared.tick)
            self._ticking = asyncio.get_running_loop().create_task(ticking)
        return AmqpSession(connection, self.shared)

    def refresh(self, loaded: Loaded) -> None:
        """Settings are looked up where they are needed."""

    async def close(self) -> None:
        """Tell clients that the broker goes."""
        if self._ticking is not None:
            self._ticking.cancel()
        if self.shared is not None:
            self.shared.say_goodbye()
