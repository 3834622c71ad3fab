"""RocketMQ's gRPC protocol on its port. What serves it is imported when the first client comes."""

from typing import TYPE_CHECKING

from onelog.config import Loaded
from onelog.gateways import House
from onelog.net.connection import Connection

if TYPE_CHECKING:
    from onelog.gateways.grpc.session import Gateway, GrpcSession


class GrpcGateway:
    """Its port, and what its sessions share once there is one."""

    def __init__(self, house: House) -> None:
        self.house = house
        self._shared: Gateway | None = None

    async def listen(self) -> None:
        """Open its port."""
        await self.house.listen(self.house.loaded.config.grpc.port, self._session)

    def _session(self, connection: Connection) -> "GrpcSession":
        from onelog.gateways.grpc.session import GrpcSession

        return GrpcSession(connection, self.shared())

    def shared(self) -> "Gateway":
        """What its sessions share."""
        if self._shared is None:
            from onelog.gateways.grpc.handlers import HANDLERS
            from onelog.gateways.grpc.session import Gateway
            from onelog.gateways.grpc.transactions import ask_producer

            self._shared = Gateway(self.house, HANDLERS)
            self.house.broker.hooks.ask_producer.append(ask_producer)
        return self._shared

    def refresh(self, loaded: Loaded) -> None:
        """Take over what follows from the configuration."""
        if self._shared is not None:
            self._shared.refresh(loaded)

    async def close(self) -> None:
        """Take no more calls, and give back what clients have not acknowledged."""
        if self._shared is not None:
            self._shared.close()
