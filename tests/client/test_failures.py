"""What goes wrong around whole clients: nothing hangs, nothing acknowledged is lost, and errors
name the cause and the address. (What goes wrong inside one part is tested with that part.)"""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from onelog.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ClientOptions,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from onelog.client.connection.address import Address
from onelog.config import Value
from onelog.config_sources import load
from onelog.errors import (
    NameserversUnreachableError,
    OnelogError,
    WrongLoopError,
)
from onelog.server import running_nameserver
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.scripted import knowing, route_data, scripted, silent
from tests.ports import free_port
from tests.waiting import eventually

SECONDS_MAX = 40.0


def ignore(message: ReceivedMessage) -> None:
    pass


async def quick(work: Awaitable[object]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        await work


async def error_of(work: Awaitable[object]) -> OnelogError | None:
    try:
        await quick(work)
    except OnelogError as error:
        return error
    return None


# A broker that is killed, and comes back.


@contextlib.asynccontextmanager
async def broker_process(folder: Path, port: int, nameservers: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onelog", "broker", "--data", str(folder), "--port", str(port)),
        *("--nameservers", nameservers, "--name", "broker-a"),
        *("--set", "store.segment_bytes=1048576", "--set", "store.disk_refuse_percent=99"),
        stdout=PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline(), "the broker did not start"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


class Sending(threading.Thread):
    """A program that sends numbers, one after the other, and goes on with the next if one fails."""

    def __init__(self, nameserver: str) -> None:
        super().__init__()
        self._producer = Producer("app", nameserver=nameserver, timeout=1.0, retries=1)
        self.stored: list[int] = []
        self.errors: list[str] = []
        self.is_over = False

    def run(self) -> None:
        number = 0
        with self._producer as producer:
            while not self.is_over:
                number += 1
                try:
                    producer.send(Message("orders", b"%d" % number))
                    self.stored.append(number)
                except OnelogError as error:
                    self.errors.append(str(error))
                time.sleep(0.005)


async def test_a_killed_broker_that_comes_back_has_lost_nothing_and_all_go_on(
    tmp_path: Path,
) -> None:
    kv: dict[str, Value] = {"nameserver.port": 0, "nameserver.kv_path": str(tmp_path / "kv.json")}
    port = free_port()
    async with (
        running_nameserver(load(overrides=kv)) as server,
        contextlib.AsyncExitStack() as all_,
    ):
        nameserver = str(Address(*server.address))
        heard: dict[str, set[int]] = {"popping": set(), "in order": set(), "pulling": set()}
        sending = Sending(nameserver)
        async with broker_process(tmp_path / "store", port, nameserver) as broker:
            await asyncio.to_thread(sending.start)
            all_.callback(setattr, sending, "is_over", True)
            await eventually(lambda: len(sending.stored) > 20, "messages")
            for name, consumer in (
                ("popping", AsyncPushConsumer("p", nameserver=nameserver, pop=True, start="first")),
                (
                    "in order",
                    AsyncPushConsumer("o", nameserver=nameserver, orderly=True, start="first"),
                ),
            ):
                await all_.enter_async_context(consumer)
                hear = heard[name].add
                consumer.subscribe("orders", listener=lambda m, hear=hear: hear(int(m.body)))
                await quick(consumer.start())
            reading = AsyncPullConsumer("r", nameserver=nameserver, start="first", timeout=1.0)
            await all_.enter_async_context(reading)
            reading.subscribe("orders")

            async def read() -> None:
                async for message in reading:
                    heard["pulling"].add(int(message.body))

            task = asyncio.create_task(read())
            all_.callback(task.cancel)
            await eventually(lambda: all(len(some) > 20 for some in heard.values()), "consumption")
            broker.send_signal(signal.SIGKILL)
            await broker.wait()
            count = len(sending.errors)
            await eventually(lambda: len(sending.errors) > count + 1, "errors")
        assert any(f"127.0.0.1:{port}" in error for error in sending.errors)
        before = len(sending.stored)
        async with broker_process(tmp_path / "store", port, nameserver):
            await eventually(lambda: len(sending.stored) > before + 20, "more messages", 40)
            sending.is_over = True
            await asyncio.to_thread(sending.join)
            wanted = set(sending.stored)
            for name, numbers in heard.items():
                await eventually(lambda n=numbers: wanted <= n, f"{name} all of them", 40)  # type: ignore[misc]
            await all_.aclose()


# Name servers.


async def test_clients_go_on_without_a_name_server_and_notice_when_it_is_back(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with live_cluster(
        tmp_path, nameserver__port=port, broker__register_interval_ms=1000
    ) as cluster:
        await cluster.create_topic("orders")
        heard: list[bytes] = []
        nameserver, address = cluster.nameservers[0], cluster.addresses
        async with (
            AsyncProducer("app", nameserver=address, timeout=10.0) as producer,
            AsyncPushConsumer("billing", nameserver=address, start="first") as consumer,
        ):
            consumer.subscribe("orders", listener=lambda message: heard.append(message.body))
            await producer.send(Message("orders", b"before"))
            await quick(consumer.start())
            await eventually(lambda: heard == [b"before"], "the first message")
            await nameserver.close()
            with pytest.raises(NameserversUnreachableError, match=address):
                await producer.instance.routes.refresh("orders")
            await quick(producer.send(Message("orders", b"meanwhile")))
            await eventually(lambda: heard == [b"before", b"meanwhile"], "what is sent meanwhile")
            with pytest.raises(NameserversUnreachableError, match=address):
                await quick(producer.send(Message("another", b"x")))
            kv: dict[str, Value] = {
                "nameserver.port": port,
                "nameserver.kv_path": str(tmp_path / "kv.json"),
            }
            async with running_nameserver(load(overrides=kv)):

                async def is_known_again() -> bool:
                    with contextlib.suppress(OnelogError):
                        await producer.send(Message("another", b"x"))
                        return True
                    return False

                await eventually(is_known_again, "the name server knows the broker again")


Use = Callable[[str, float], Awaitable[None]]
"""With these name servers, and so much patience with each node."""
CLIENTS: dict[str, Use] = {}
PATIENCE = 0.4
MORE_PATIENCE = 10.0
"""On a busy machine healthy nodes may need longer too."""


def client(use: Use) -> Use:
    CLIENTS[use.__name__] = use
    return use


@client
async def producer(nameserver: str, patience: float) -> None:
    async with AsyncProducer("app", nameserver=nameserver, timeout=patience) as sending:
        await sending.send(Message("orders", b"x"))


@client
async def sync_producer(nameserver: str, patience: float) -> None:
    def send() -> None:
        with Producer("app", nameserver=nameserver, timeout=patience) as sending:
            sending.send(Message("orders", b"x"))

    await asyncio.to_thread(send)


@client
async def push_consumer(nameserver: str, patience: float) -> None:
    async with AsyncPushConsumer("billing", nameserver=nameserver, timeout=patience) as consumer:
        consumer.subscribe("orders", listener=ignore)
        await consumer.start()


@client
async def sync_push_consumer(nameserver: str, patience: float) -> None:
    def consume() -> None:
        with PushConsumer("billing", nameserver=nameserver, timeout=patience) as consumer:
            consumer.subscribe("orders", listener=ignore)
            consumer.start()

    await asyncio.to_thread(consume)


@client
async def pop_consumer(nameserver: str, patience: float) -> None:
    async with AsyncPushConsumer(
        "b", nameserver=nameserver, timeout=patience, pop=True
    ) as consumer:
        consumer.subscribe("orders", listener=ignore)
        await consumer.start()


@client
async def pull_consumer(nameserver: str, patience: float) -> None:
    async with AsyncPullConsumer("billing", nameserver=nameserver, timeout=patience) as consumer:
        consumer.assign(await consumer.queues("orders"))
        await consumer.end_offsets()


@client
async def sync_pull_consumer(nameserver: str, patience: float) -> None:
    def consume() -> None:
        with PullConsumer("billing", nameserver=nameserver, timeout=patience) as consumer:
            consumer.assign(consumer.queues("orders"))
            consumer.end_offsets()

    await asyncio.to_thread(consume)


EVERY_CLIENT = pytest.mark.parametrize("use", list(CLIENTS.values()), ids=list(CLIENTS))


@EVERY_CLIENT
async def test_no_name_server_is_an_error_that_names_it(
    use: Use,
) -> None:
    gone = f"127.0.0.1:{free_port()}"
    with pytest.raises(NameserversUnreachableError, match=f"no connection to {gone}"):
        await quick(use(gone, PATIENCE))


@EVERY_CLIENT
async def test_a_half_dead_name_server_is_an_error_in_time_that_names_it(
    use: Use,
) -> None:
    async with scripted(silent) as nameserver:
        with pytest.raises(NameserversUnreachableError, match=f"{nameserver.address} did not ans"):
            await quick(use(str(nameserver.address), PATIENCE))


@EVERY_CLIENT
async def test_a_half_dead_name_server_is_left_for_a_healthy_one(
    use: Use, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    async with scripted(silent) as nameserver:
        both = f"{nameserver.address};{cluster.addresses}"
        if await error_of(use(both, PATIENCE)) is not None:
            await quick(use(both, MORE_PATIENCE))


@EVERY_CLIENT
async def test_a_half_dead_broker_holds_nobody_up(
    use: Use, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(silent) as broker:
        route = route_data({"broker-a": broker.address})
        async with scripted(knowing({"orders": route})) as nameserver:
            error = await error_of(use(str(nameserver.address), PATIENCE))
            if not broker.requests:
                error = await error_of(use(str(nameserver.address), MORE_PATIENCE))
        assert broker.requests
        # Push consumers wait for a broker to answer, and say so; the others were told to ask now.
        said = str(error) if error is not None else caplog.text
        assert str(broker.address) in said
        assert (error is None) == ("push" in use.__name__ or "pop" in use.__name__)


# Loops and interpreters that end early.


# A connection that was being made or accepted when its loop ended is forgotten: that is the case.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["producer", "push consumer", "pull consumer"])
def test_a_loop_that_is_closed_early_leaves_a_client_that_says_so(
    kind: str, tmp_path: Path
) -> None:
    made: dict[str, AsyncProducer | AsyncPushConsumer | AsyncPullConsumer] = {}

    async def forget() -> None:
        async with live_cluster(tmp_path) as cluster:
            await cluster.create_topic("orders")
            options: ClientOptions = {"nameserver": cluster.addresses}
            if kind == "producer":
                made[kind] = sending = AsyncProducer("app", **options)
                await sending.start()
                await sending.send(Message("orders", b"x"))
                instance = sending.instance
            elif kind == "push consumer":
                made[kind] = consumer = AsyncPushConsumer("g", **options)
                consumer.subscribe("orders", listener=ignore)
                await consumer.start()
                instance = consumer.instance
            else:
                made[kind] = reading = AsyncPullConsumer("g", **options)
                await reading.start()
                reading.assign(await reading.queues("orders"))
                instance = reading.instance
            for peer in instance.nodes._peers.values():
                peer.connection.abort()
            await asyncio.sleep(0.05)

    async def use(client: AsyncProducer | AsyncPushConsumer | AsyncPullConsumer) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            if isinstance(client, AsyncProducer):
                await client.send(Message("orders", b"x"))
            elif isinstance(client, AsyncPullConsumer):
                await client.poll(0.1)
            else:
                await client.commit()

    asyncio.run(forget())
    with pytest.raises(WrongLoopError, match=r"belongs to the event loop .* closed"):
        asyncio.run(use(made[kind]))
    began = time.monotonic()
    with contextlib.suppress(WrongLoopError):
        asyncio.run(made[kind].close())
    assert time.monotonic() - began < SECONDS_MAX
    made.clear()
    gc.collect()  # What was forgotten is complained of here, not in a later test.


@pytest.mark.parametrize("kind", [AsyncProducer, AsyncPullConsumer])
async def test_a_client_is_closed_on_its_own_loop_only(
    kind: type[AsyncProducer | AsyncPullConsumer], cluster: LiveCluster
) -> None:
    async with kind("app", nameserver=cluster.addresses) as client:
        with pytest.raises(WrongLoopError, match="which is another one"):
            await asyncio.to_thread(lambda: asyncio.run(client.close()))
        assert client.instance.is_open


FORGETFUL = """
import sys, threading
from onelog.client import Message, Producer, PullConsumer, PushConsumer

at = {"nameserver": sys.argv[1]}
heard = threading.Event()
producer = Producer("app", **at)
producer.start()
producer.send(Message("orders", b"x"))
later = [producer.send_async(Message("orders", b"x")) for _ in range(100)]
consumer = PushConsumer("billing", start="first", **at)
consumer.subscribe("orders", listener=lambda message: heard.set())
consumer.start()
popping = PushConsumer("popping", start="first", pop=True, **at)
popping.subscribe("orders", listener=lambda message: None)
popping.start()
reader = PullConsumer("reading", start="first", **at)
reader.start()
reader.subscribe("orders")
assert reader.poll(30)
assert heard.wait(30)
print("bye", flush=True)
"""

INTERRUPTED = """
import asyncio, sys
from onelog.client import AsyncPushConsumer

async def main():
    async with AsyncPushConsumer("billing", start="first", nameserver=sys.argv[1]) as consumer:

        @consumer.subscribe("orders")
        async def bill(message):
            print("begun", flush=True)
            await asyncio.sleep(0.5)
            print("done", flush=True)

        await consumer.run()

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("the end", flush=True)
"""


@contextlib.asynccontextmanager
async def program(text: str, cluster: LiveCluster) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", text, cluster.addresses),
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_a_program_that_closes_nothing_ends_all_the_same(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    async with program(FORGETFUL, cluster) as process:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"bye\n", await process.communicate()
        async with asyncio.timeout(SECONDS_MAX):
            out, err = await process.communicate()
        assert (out, err, process.returncode) == (b"", b"", 0)


async def test_ctrl_c_ends_an_asyncio_program_after_what_is_in_hand(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", queues=1)
    await cluster.send("orders", b"x")
    async with program(INTERRUPTED, cluster) as process:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(SECONDS_MAX):
            out, err = await process.communicate()
        assert (out, err, process.returncode) == (b"done\nthe end\n", b"", 0)
    assert cluster.brokers[0].core.offsets.get("billing", "orders", 0) == 1
