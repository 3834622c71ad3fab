"""RocketMQ's gRPC protocol on its port. What serves it is imported when the first client comes.

That takes longer than others should wait: it is done in a worker, and those who come meanwhile are
read from when it is done.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from onelog.config import Loaded
from onelog.gateways import House
from onelog.gateways.grpc.endpoints import Endpoints
from onelog.net.connection import Connection, Session

if TYPE_CHECKING:
    from onelog.gateways.grpc.session import Gateway


class _Early:
    """The session of a connection that came before there could be one; then it passes on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unread: list[bytes] = []
        self._session: Session | None = None
        self._is_lost = False
        connection.hold()

    def begin(self, gateway: "Gateway") -> None:
        """Everything is there now."""
        from onelog.gateways.grpc.session import GrpcSession

        if not self._is_lost:
            self._session = GrpcSession(self._connection, gateway)
            if self._unread:
                # By way of the connection, which knows what to do with a bad peer.
                self._connection.data_received(b"".join(self._unread))
            self._connection.read_on()

    def data_received(self, data: bytes) -> None:
        """Bytes arrived, or were there already."""
        if self._session is None:
            self._unread.append(data)
        else:
            self._session.data_received(data)

    def writable(self) -> None:
        """The peer reads again."""
        if self._session is not None:
            self._session.writable()

    def connection_lost(self) -> None:
        """The connection is gone."""
        self._is_lost = True
        if self._session is not None:
            self._session.connection_lost()


def _imported() -> None:
    from onelog.gateways.grpc import handlers  # noqa: F401


class GrpcGateway:
    """Its port, and what its sessions share once there is one."""

    def __init__(self, house: House) -> None:
        self.house = house
        self._shared: Gateway | None = None
        self._early: list[_Early] = []
        self.endpoints = Endpoints(house)

    async def listen(self) -> None:
        """Open its port."""
        await self.house.listen(self.house.loaded.config.grpc.port, self._session)
        await self.endpoints.start()

    def _session(self, connection: Connection) -> Session:
        if self._shared is None:
            if not self._early:
                self.house.look_up(_imported, self._begin)
            early = _Early(connection)
            self._early.append(early)
            return early
        from onelog.gateways.grpc.session import GrpcSession

        return GrpcSession(connection, self._shared)

    def _begin(self, imported: Callable[[], None]) -> None:
        early, self._early = self._early, []
        imported()
        for each in early:
            each.begin(self.shared())

    def shared(self) -> "Gateway":
        """What its sessions share."""
        if self._shared is None:
            from onelog.gateways.grpc.handlers import HANDLERS
            from onelog.gateways.grpc.session import Gateway
            from onelog.gateways.grpc.transactions import ask_producer

            self._shared = Gateway(self.house, HANDLERS, self.endpoints)
            self.house.broker.hooks.ask_producer.append(ask_producer)
        return self._shared

    def refresh(self, loaded: Loaded) -> None:
        """Take over what follows from the configuration."""
        if self._shared is not None:
            self._shared.refresh(loaded)

    async def close(self) -> None:
        """Take no more calls, and give back what clients have not acknowledged."""
        await self.endpoints.close()
        if self._shared is not None:
            self._shared.close()
