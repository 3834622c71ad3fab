"""RocketMQ's protocol: its ports, its handlers, and the broker's place at the name servers."""

import logging

from onelog.errors import ListenError
from onelog.gateways import GatewayContext
from onelog.gateways.remoting.admin import broker as broker_admin
from onelog.gateways.remoting.admin import client_relay
from onelog.gateways.remoting.admin import groups as group_admin
from onelog.gateways.remoting.admin import topics as topic_admin
from onelog.gateways.remoting.admin import users as user_admin
from onelog.gateways.remoting.consuming import clients, fetching
from onelog.gateways.remoting.registrar import Registrar
from onelog.gateways.remoting.sending import reply, send, transactions
from onelog.gateways.remoting.session import BrokerSession, Gateway, Handler
from onelog.net.connection import Connection

log = logging.getLogger(__name__)

HANDLERS: dict[int, Handler] = {
    **send.HANDLERS,
    **fetching.HANDLERS,
    **clients.HANDLERS,
    **topic_admin.HANDLERS,
    **group_admin.HANDLERS,
    **broker_admin.HANDLERS,
    **user_admin.HANDLERS,
    **client_relay.HANDLERS,
    **transactions.HANDLERS,
    **reply.HANDLERS,
}


class RemotingGateway(Gateway):
    """What its sessions share, and their ports."""

    def __init__(self, context: GatewayContext) -> None:
        super().__init__(context, HANDLERS)
        broker = self.broker
        broker.groups.on_members_change.append(clients.notify_members)
        broker.groups.on_channel_expired.append(_drop)
        broker.transactions.ask_producer.append(transactions.ask_producer)
        self._registrar: Registrar | None = None

    async def listen(self) -> None:
        """Open its port and the one for old clients, and register."""
        config = self.broker.admin.config
        await self.context.listen(config.port, self._session)
        await self._listen_for_old_clients()
        host = f"[{config.client_host}]" if ":" in config.client_host else config.client_host
        if not self.context.replica_status.ha_address:
            self.context.replica_status.ha_address = f"{host}:{config.port + 1}"
        self._registrar = Registrar(self.context, f"{host}:{config.port}")
        await self._registrar.start()

    async def _listen_for_old_clients(self) -> None:
        """The second port, which clients up to 4.4 send to; it gives the same answers."""
        config = self.broker.admin.config
        if config.second_port is None:
            return
        try:
            await self.context.listen(config.second_port, self._session)
        except ListenError as error:
            if config.vip_port != -1:
                raise
            log.warning("%s: clients older than 4.5 cannot send to this broker", error)

    def _session(self, connection: Connection) -> BrokerSession:
        return BrokerSession(connection, self)

    async def close(self) -> None:
        """Say goodbye to the name servers."""
        try:
            if self._registrar is not None:
                await self._registrar.close()
        finally:
            await self.routes.close()


def _drop(channel: object) -> None:
    """A client was silent for too long."""
    if isinstance(channel, BrokerSession):
        channel.connection.close()
