"""A whole cluster in the test's own process: name servers and brokers on free loopback ports."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from onelog.client.admin.admin import AsyncAdmin
from onelog.config import Value
from onelog.config_sources import load
from onelog.nameserver.server import NameServer
from onelog.net.peer import Peer
from onelog.server import BrokerServer, running_broker, running_nameserver
from onelog.wire.remoting.codes import RequestCode
from tests.gateways.remoting.live import PATIENCE_MS, SMALL, Client


@dataclass
class LiveCluster:
    """Name servers, and the brokers that registered with them."""

    nameservers: list[NameServer]
    brokers: list[BrokerServer]
    clients: list[Client] = field(default_factory=list)
    _senders: dict[int, Client] = field(default_factory=dict)

    @property
    def addresses(self) -> str:
        """The name servers, as people write them."""
        return ";".join(f"{host}:{port}" for host, port in (n.address for n in self.nameservers))

    def admin(self, timeout_ms: int = PATIENCE_MS) -> AsyncAdmin:
        return AsyncAdmin.connect(self.addresses, timeout_ms=timeout_ms)

    async def client(self, broker: int = 0) -> Client:
        """A client that is connected to one of the brokers."""
        server = self.brokers[broker]
        port = server.config.broker.port
        peer = await Peer.connect("127.0.0.1", port, timeout_ms=PATIENCE_MS)
        self.clients.append(Client(peer, []))
        return self.clients[-1]

    async def _sender(self, broker: int) -> Client:
        if broker not in self._senders:
            self._senders[broker] = await self.client(broker)
        return self._senders[broker]

    async def create_topic(self, topic: str, queues: int = 2, broker: int = 0) -> None:
        answer = await (await self._sender(broker)).ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=topic,
            defaultTopic="TBW102",
            readQueueNums=queues,
            writeQueueNums=queues,
            perm=6,
            topicFilterType="SINGLE_TAG",
            topicSysFlag=0,
            order="false",
        )
        assert answer.code == 0, answer.remark

    async def send(
        self, topic: str, body: bytes, queue: int = 0, broker: int = 0, **properties: str
    ) -> str:
        """Send a message; its id."""
        answer = await (await self._sender(broker)).send(topic, body, properties, e=queue)
        assert answer.code == 0, answer.remark
        return answer.ext["msgId"]


@contextlib.asynccontextmanager
async def live_cluster(
    folder: Path, brokers: int = 1, nameservers: int = 1, **settings: Value
) -> AsyncIterator[LiveCluster]:
    """A cluster for as long as the block lasts; settings as `broker__name="x"`."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    async with contextlib.AsyncExitStack() as stack:
        cluster = LiveCluster([], [])
        for number in range(nameservers):
            loaded = load(
                overrides={
                    "nameserver.port": 0,
                    **given,
                    "nameserver.kv_path": str(folder / f"kv-{number}.json"),
                }
            )
            cluster.nameservers.append(await stack.enter_async_context(running_nameserver(loaded)))
        for number in range(brokers):
            overrides: dict[str, Value] = {
                **SMALL,
                "broker.name": f"broker-{'abc'[number]}",
                "broker.nameservers": cluster.addresses,
                "broker.store_path": str(folder / f"store-{number}"),
                **given,
            }
            server = await stack.enter_async_context(running_broker(load(overrides=overrides)))
            cluster.brokers.append(server)
        try:
            yield cluster
        finally:
            for client in cluster.clients:
                await client.peer.close()
