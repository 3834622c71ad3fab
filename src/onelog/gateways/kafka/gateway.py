"""Kafka's protocol on its port. What serves it is imported when the first client comes."""

from typing import TYPE_CHECKING

from onelog.config import Loaded
from onelog.gateways import House
from onelog.net.connection import Connection

if TYPE_CHECKING:
    from onelog.gateways.kafka.session import Gateway, KafkaSession


class KafkaGateway:
    """Its port, and what its sessions share once there is one."""

    def __init__(self, house: House) -> None:
        self.house = house
        self._shared: Gateway | None = None

    async def listen(self) -> None:
        """Open its port."""
        self.refresh(self.house.loaded)
        await self.house.listen(self.house.loaded.config.kafka.port, self._session)

    def _session(self, connection: Connection) -> "KafkaSession":
        from onelog.gateways.kafka.session import Gateway, KafkaSession

        if self._shared is None:
            from onelog.gateways.kafka.handlers import HANDLERS, VERSIONS

            self._shared = Gateway(self.house, HANDLERS, VERSIONS)
        return KafkaSession(connection, self._shared)

    def refresh(self, loaded: Loaded) -> None:
        """Most settings are looked up where they are needed."""
        minutes = loaded.config.kafka.offsets_retention_minutes
        self.house.broker.coordinator.uses.retention_ms = minutes * 60_000

    async def close(self) -> None:
        """Clients find out by themselves."""
