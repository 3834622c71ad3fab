"""Kafka's protocol on its port. What serves it is imported when the first client comes."""

from types import ModuleType
from typing import TYPE_CHECKING

from onelog.config_sources import Loaded
from onelog.errors import ConfigError
from onelog.gateways import GatewayContext
from onelog.net.connection import Connection

if TYPE_CHECKING:
    from onelog.gateways.kafka.session import Gateway, KafkaSession


def _handlers() -> ModuleType:
    from onelog.gateways.kafka import handlers

    return handlers


class KafkaGateway:
    """Its port, and what its sessions share once there is one."""

    def __init__(self, context: GatewayContext) -> None:
        self.context = context
        self._shared: Gateway | None = None

    async def listen(self) -> None:
        """Open its port, and join the cluster, if the broker is in one."""
        config = self.context.loaded.config
        self.refresh(self.context.loaded)
        if self.context.broker.admin.kafka_settings.all():
            self.shared().kept_settings.apply()
        await self.context.listen(config.kafka.port, self._session, _handlers)
        if config.kafka.node_id >= 0:
            if not self.context.broker.admin.config.nameserver_addresses:
                raise ConfigError("kafka.node_id is of a cluster: set broker.nameservers, too")
            agreement = self.shared().agreement
            assert agreement is not None
            await agreement.start()
            # What others may not know the end of.
            self.context.broker.transactions.in_place.expire()

    def _session(self, connection: Connection) -> "KafkaSession":
        from onelog.gateways.kafka.session import KafkaSession

        return KafkaSession(connection, self.shared())

    def shared(self) -> "Gateway":
        if self._shared is None:
            from onelog.gateways.kafka.session import Gateway

            served = _handlers()
            is_alone = self.context.loaded.config.kafka.node_id < 0
            follows = is_alone and bool(self.context.replica_status.broker_id)
            handlers = served.FOLLOWER_HANDLERS if follows else served.HANDLERS
            self._shared = Gateway(
                self.context, handlers, served.VERSIONS if is_alone else served.CLUSTER_VERSIONS
            )
        return self._shared

    def refresh(self, loaded: Loaded) -> None:
        """Most settings are looked up where they are needed."""
        self.context.broker.publish.set_batch_bytes_max(loaded.config.kafka.message_bytes_max)
        if self._shared is not None:
            self._shared.targets.clear()
        minutes = loaded.config.kafka.offsets_retention_minutes
        self.context.broker.groups.forget_after(minutes * 60_000)

    async def close(self) -> None:
        """Clients find out by themselves."""
        if self._shared is not None and self._shared.agreement is not None:
            await self._shared.agreement.close()
