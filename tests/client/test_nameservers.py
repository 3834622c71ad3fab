"""Clients that have several name servers, of which one is half dead and one is gone."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.message import Message, ReceivedMessage
from onelog.client.producer.producer import AsyncProducer
from onelog.config import NameserverConfig, load
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.nameserver.server import NameServer, serve_nameserver
from onelog.server import BrokerServer, running_broker
from tests.client.mutable_proxy import Proxy, proxied
from tests.client.watching import eventually
from tests.gateways.remoting.live import SMALL

PAUSE_SECONDS_MAX = 3.0


class Pauses:
    """The longest time between two events of a kind."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = time.monotonic()

    def note(self) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last)
        self._last = now


class Cluster(NamedTuple):
    """Three name servers, of which the second is behind a proxy, and a broker."""

    servers: list[NameServer]
    half_dead: Proxy
    broker: BrokerServer
    where: str


@contextlib.asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """All of them, with a topic that each name server knows; the first is the test's to close."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [
            await serve_nameserver(NameserverConfig(port=0, kv_path=str(folder / f"{n}.json")))
            for n in range(3)
        ]
        for server in servers[1:]:
            stack.push_async_callback(server.close)
        half_dead = await stack.enter_async_context(proxied(servers[1].address[1]))
        where = ";".join(
            [f"127.0.0.1:{servers[0].address[1]}", half_dead.address,
             f"127.0.0.1:{servers[2].address[1]}"]
        )  # fmt: skip
        overrides = {
            **SMALL, "broker.store_path": str(folder / "store"), "broker.nameservers": where,
            "broker.register_timeout_ms": 60_000,
        }  # fmt: skip
        broker = await stack.enter_async_context(running_broker(load(overrides=overrides)))
        broker.broker.admin.create_topic(SELF, TopicConfig("orders", 4, 4))
        await eventually(
            lambda: all(each.registry.routes.route("orders") for each in servers), "registered"
        )
        yield Cluster(servers, half_dead, broker, where)


async def test_clients_go_on_when_of_three_name_servers_one_is_half_dead_and_one_is_killed(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers, half_dead, broker, where = await stack.enter_async_context(cluster(tmp_path))
        got: set[bytes] = set()
        sends, receives = Pauses(), Pauses()

        async def listen(message: ReceivedMessage) -> None:
            got.add(bytes(message.body))
            receives.note()

        consumer = AsyncPushConsumer("readers", nameserver=where, start="first")
        consumer.subscribe("orders", listener=listen)
        await stack.enter_async_context(consumer)
        await consumer.start()
        producer = await stack.enter_async_context(AsyncProducer("senders", nameserver=where))
        sent: set[bytes] = set()

        async def send(topic: str, number: int) -> None:
            body = f"{topic}-{number}".encode()
            await producer.send(Message(topic, body))
            if topic == "orders":
                sent.add(body)
            sends.note()

        async def create(topic: str) -> None:
            broker.broker.admin.create_topic(SELF, TopicConfig(topic, 1, 1))
            routes = servers[2].registry.routes
            await eventually(
                lambda: routes.route(topic) is not None, "a new topic is known", PAUSE_SECONDS_MAX
            )

        await send("orders", 0)
        await eventually(lambda: len(got) == 1, "the first message came")
        half_dead.is_mute = True
        await servers[0].close()
        sends.note()
        receives.note()
        for number in range(1, 21):
            # An old topic, one that is new to this client, and one that is new to the broker.
            await send("orders", number)
            await create(f"late{number}")
            await send(f"late{number}", number)
            await producer.instance.routes.refresh("orders")
            await asyncio.sleep(0.02)
        await eventually(lambda: got == sent, "all came")
        async with AsyncProducer("late", nameserver=where) as late:
            began = time.monotonic()
            await late.send(Message("orders", b"of a new client"))
            assert time.monotonic() - began < PAUSE_SECONDS_MAX
        assert sends.longest < PAUSE_SECONDS_MAX
        assert receives.longest < PAUSE_SECONDS_MAX
