"""STOMP on its port. What serves it is imported when the first client comes."""

import asyncio
from typing import TYPE_CHECKING

from onelog.config_sources import Loaded
from onelog.gateways import GatewayContext
from onelog.net.connection import Connection
from onelog.net.tasks import repeat

if TYPE_CHECKING:
    from onelog.gateways.stomp.session import Gateway, Handler, StompSession

TICK_SECONDS = 0.1
"""How often it is looked whether heart-beats are due, or missing."""


def handlers() -> "dict[str, Handler]":
    """Every command of a client, and what handles it."""
    from onelog.gateways.stomp import sending, session, subscriptions, transactions

    return {
        "SEND": sending.send,
        "SUBSCRIBE": subscriptions.subscribe,
        "UNSUBSCRIBE": subscriptions.unsubscribe,
        "ACK": subscriptions.acknowledge,
        "NACK": subscriptions.refuse,
        "BEGIN": transactions.begin,
        "COMMIT": transactions.commit,
        "ABORT": transactions.abort,
        "DISCONNECT": session.disconnect,
    }


class StompGateway:
    """Its port, and what its sessions share once there is one."""

    def __init__(self, context: GatewayContext) -> None:
        self.context = context
        self.shared: Gateway | None = None
        self._ticking: asyncio.Task[None] | None = None
        context.routes.append("onelog.gateways.stomp.websocket:routes")
        context.make_session["stomp"] = self._session

    async def listen(self) -> None:
        """Open its port."""
        await self.context.listen(self.context.loaded.config.stomp.port, self._session, handlers)

    def _session(self, connection: Connection) -> "StompSession":
        from onelog.gateways.stomp.session import StompSession

        return StompSession(connection, self._shared())

    def _shared(self) -> "Gateway":
        if self.shared is None:
            from onelog.gateways.stomp.session import Gateway

            self.shared = Gateway(self.context, handlers())
            ticking = repeat("heart-beats of STOMP", TICK_SECONDS, self.shared.tick)
            self._ticking = asyncio.get_running_loop().create_task(ticking)
        return self.shared

    def refresh(self, loaded: Loaded) -> None:
        """Settings are looked up where they are needed."""

    async def close(self) -> None:
        """Clients find out by themselves."""
        if self._ticking is not None:
            self._ticking.cancel()
