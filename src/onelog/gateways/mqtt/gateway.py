"""MQTT on its port. What serves it is imported when it listens."""

from typing import TYPE_CHECKING

from onelog.config_sources import Loaded
from onelog.gateways import GatewayContext
from onelog.net.connection import Connection

if TYPE_CHECKING:
    from onelog.gateways.mqtt.clients import Clients
    from onelog.gateways.mqtt.session import MqttSession


def _session_class() -> "type[MqttSession]":
    from onelog.gateways.mqtt.session import MqttSession

    return MqttSession


class MqttGateway:
    """Its port, and what its sessions share."""

    def __init__(self, context: GatewayContext) -> None:
        self.context = context
        self._clients: Clients | None = None
        context.make_session["mqtt"] = self.session
        context.routes.append("onelog.gateways.mqtt.websocket:routes")

    async def listen(self) -> None:
        """Open its port."""
        port = self.context.loaded.config.mqtt.port
        await self.context.listen(port, self.session, _session_class)
        if self.context.broker.queues.sessions.kept:
            self.clients()  # Sessions end, and wills are done, whether anybody connects or not.

    def session(self, connection: Connection) -> "MqttSession":
        """The session of a connection, whatever that comes through."""
        return _session_class()(connection, self.clients())

    def clients(self) -> "Clients":
        """What its sessions share."""
        if self._clients is None:
            from onelog.gateways.mqtt.clients import Clients

            self._clients = Clients(self.context)
            self._clients.start()
        return self._clients

    def refresh(self, loaded: Loaded) -> None:
        """Settings are looked up where they are needed."""

    async def close(self) -> None:
        """Tell clients that the broker stops."""
        if self._clients is not None:
            await self._clients.stop()
