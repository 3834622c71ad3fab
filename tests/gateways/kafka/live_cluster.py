"""Several brokers and their name server in this process, as one Kafka cluster."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from onelog.config import NameserverConfig, Value
from onelog.nameserver.server import NameServer, serve_nameserver
from onelog.server import BrokerServer
from tests.gateways.kafka.live import address, kafka
from tests.ports import free_port

_BROKERS_MAX = 5


class KafkaCluster:
    """Brokers that can be stopped and started."""

    def __init__(self, folder: Path, settings: dict[str, Value]) -> None:
        self._folder = folder
        self._settings = settings
        self.nameserver: NameServer
        self._stacks: dict[int, contextlib.AsyncExitStack] = {}
        self._port = free_port()
        """The first of some that are free, for brokers that come back where they were."""
        self.servers: dict[int, BrokerServer] = {}

    def __getitem__(self, number: int) -> BrokerServer:
        return self.servers[number]

    @property
    def bootstrap(self) -> str:
        """All brokers that run."""
        return ",".join(address(each) for each in self.servers.values())

    async def start_nameserver(self) -> None:
        """Start the name server, on the port that it had."""
        path = str(self._folder / "kv.json")
        config = NameserverConfig(port=self._port + _BROKERS_MAX * 2, kv_path=path)
        self.nameserver = await serve_nameserver(config)

    async def stop_nameserver(self) -> None:
        """Stop it."""
        await self.nameserver.close()

    @property
    def nameservers(self) -> str:
        """Where RocketMQ's clients begin."""
        return f"127.0.0.1:{self._port + _BROKERS_MAX * 2}"

    async def start(self, number: int, **settings: Value) -> BrokerServer:
        """Start a broker, on the ports that it had."""
        stack = self._stacks[number] = contextlib.AsyncExitStack()
        given: dict[str, Value] = {
            "broker__name": f"broker-{'abcdef'[number]}",
            "broker__port": self._port + _BROKERS_MAX + number,
            "broker__nameservers": self.nameservers,
            "broker__register_interval_ms": 1_000,
            "kafka__node_id": number,
            "kafka__port": self._port + number,
            **self._settings,
            **settings,
        }
        running = kafka(self._folder / f"broker-{number}", **given)
        server = self.servers[number] = await stack.enter_async_context(running)
        return server

    async def stop(self, number: int) -> None:
        """Stop a broker."""
        del self.servers[number]
        await self._stacks.pop(number).aclose()

    async def close(self) -> None:
        """Stop everything."""
        for number in list(self.servers):
            await self.stop(number)
        await self.stop_nameserver()


@contextlib.asynccontextmanager
async def kafka_cluster(
    folder: Path, count: int = 3, **settings: Value
) -> AsyncIterator[KafkaCluster]:
    """Some brokers that are one Kafka cluster."""
    cluster = KafkaCluster(folder, settings)
    await cluster.start_nameserver()
    try:
        for number in range(count):
            await cluster.start(number)
        yield cluster
    finally:
        await cluster.close()
