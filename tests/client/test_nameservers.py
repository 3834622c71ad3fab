"""Clients that have several name servers, of which one is half dead and one is gone."""

import asyncio
import contextlib
import time
from pathlib import Path

from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.message import Message, ReceivedMessage
from onelog.client.producer.producer import AsyncProducer
from onelog.config import NameserverConfig
from onelog.config_sources import Loaded, load
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.nameserver.server import NameServer, serve_nameserver
from onelog.server import BrokerServer, running_broker
from tests.client.mutable_proxy import proxied
from tests.gateways.remoting.live import SMALL
from tests.waiting import eventually

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


async def three_nameservers(folder: Path) -> list[NameServer]:
    return [
        await serve_nameserver(NameserverConfig(port=0, kv_path=str(folder / f"{n}.json")))
        for n in range(3)
    ]


async def create(broker: BrokerServer, topic: str, names: NameServer) -> None:
    broker.broker.topics.create(SELF, TopicConfig(topic, 1, 1))
    routes = names.registry.routes
    await eventually(
        lambda: routes.route(topic) is not None, "a new topic is known", PAUSE_SECONDS_MAX
    )


def slowly_registered(folder: Path, nameservers: str) -> Loaded:
    """A broker that waits long for its name servers."""
    overrides = {
        **SMALL,
        "broker.store_path": str(folder / "store"),
        "broker.nameservers": nameservers,
        "broker.register_timeout_ms": 60_000,
    }
    return load(overrides=overrides)


async def test_clients_go_on_with_one_name_server_half_dead_and_one_killed(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = await three_nameservers(tmp_path)
        for server in servers[1:]:
            stack.push_async_callback(server.close)
        half_dead = await stack.enter_async_context(proxied(servers[1].address[1]))
        first, last = (f"127.0.0.1:{each.address[1]}" for each in (servers[0], servers[2]))
        where = ";".join([first, half_dead.address, last])
        broker = await stack.enter_async_context(running_broker(slowly_registered(tmp_path, where)))
        broker.broker.topics.create(SELF, TopicConfig("orders", 4, 4))
        routes = [each.registry.routes for each in servers]
        await eventually(lambda: all(each.route("orders") for each in routes), "registered")
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

        await send("orders", 0)
        await eventually(lambda: len(got) == 1, "the first message came")
        half_dead.is_mute = True
        await servers[0].close()
        sends.note()
        receives.note()
        for number in range(1, 21):
            # An old topic, one that is new to this client, and one that is new to the broker.
            await send("orders", number)
            await create(broker, f"late{number}", servers[2])
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
