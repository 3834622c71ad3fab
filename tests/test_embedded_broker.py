import asyncio
import contextlib
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

import onelog
from onelog import embedded_broker
from onelog.client import AsyncProducer, Message, Producer, ReceivedMessage
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.embedded_broker import SHARED_MEMORY, EmbeddedBroker
from onelog.errors import (
    ConfigError,
    NameserversUnreachableError,
    OnelogError,
    StoreLockedError,
    TopicNotFoundError,
)
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.frame import encode_request
from tests.net.sessions import Client
from tests.waiting import eventually

SECONDS_MAX = 30.0


def open_sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


def own_folders() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob(f"{embedded_broker.FOLDER_PREFIX}*")}


# With threads.


def test_messages_go_through_it_without_a_socket() -> None:
    with onelog.embedded():
        pass  # The background loop has sockets of its own.
    sockets = open_sockets()
    got: list[bytes] = []
    done = threading.Event()
    with onelog.embedded() as mq:
        mq.create_topic("orders", queues=2)
        with mq.push_consumer("billing") as consumer, mq.producer("shop") as producer:

            @consumer.subscribe("orders")
            def bill(message: ReceivedMessage) -> None:
                got.append(message.body)
                if len(got) == 10:
                    done.set()

            consumer.start()
            for number in range(10):
                producer.send(Message("orders", b"%d" % number))
            assert done.wait(SECONDS_MAX)
            assert open_sockets() == sockets
    assert sorted(got) == [b"%d" % number for number in range(10)]


def test_a_pull_consumer_reads_what_is_there() -> None:
    with onelog.embedded() as mq:
        mq.create_topic("orders", queues=1)
        with mq.producer("shop") as producer:
            for number in range(5):
                producer.send(Message("orders", b"%d" % number))
        with mq.pull_consumer("readers", start="first") as consumer:
            consumer.subscribe("orders")
            got: list[bytes] = []
            deadline = time.monotonic() + SECONDS_MAX
            while len(got) < 5 and time.monotonic() < deadline:
                got += [message.body for message in consumer.poll(1.0)]
    assert got == [b"%d" % number for number in range(5)]


@pytest.fixture
def own_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that no test in another process has."""
    monkeypatch.setattr(embedded_broker, "FOLDER_PREFIX", f"onelog-embedded-{os.getpid()}-")


@pytest.mark.usefixtures("own_prefix")
def test_nothing_is_left_when_it_ends() -> None:
    with onelog.embedded() as mq:
        folder = mq.folder
        assert own_folders() == {folder.name}
        assert (folder / "store" / "lock").is_file()
    assert not folder.exists()
    with pytest.raises(OnelogError, match="no broker of this process listens on embedded-"):
        with Producer("shop", nameserver=mq.nameserver, retries=0) as producer:
            producer.send(Message("orders", b"x"))


def test_an_error_in_the_block_comes_out_of_it() -> None:
    with pytest.raises(ZeroDivisionError), onelog.embedded() as mq:
        raise ZeroDivisionError
    assert not mq.folder.exists()


def test_several_live_side_by_side() -> None:
    with onelog.embedded() as one, onelog.embedded() as other:
        assert one.nameserver != other.nameserver
        with one.producer("shop") as producer:
            producer.send(Message("orders", b"x"))
        with other.pull_consumer("readers") as consumer:
            with pytest.raises(TopicNotFoundError):
                consumer.queues("orders")


def test_the_same_object_can_be_used_again() -> None:
    embedding = onelog.embedded()
    for _ in range(2):
        with embedding as mq, mq.producer("shop") as producer:
            assert producer.send(Message("orders", b"x")).offset == 0


def test_a_folder_keeps_its_messages(tmp_path: Path) -> None:
    with onelog.embedded(tmp_path) as mq, mq.producer("shop") as producer:
        receipt = producer.send(Message("orders", b"kept"))
        assert mq.folder == tmp_path
    with onelog.embedded(str(tmp_path)) as mq, mq.admin() as admin:
        assert bytes(admin.messages.by_id(receipt.offset_id).message.body) == b"kept"
    assert (tmp_path / "store").is_dir()


def test_a_folder_has_one_broker_at_a_time(tmp_path: Path) -> None:
    with onelog.embedded(tmp_path) as first:
        with pytest.raises(StoreLockedError, match="in use by another broker"):
            with onelog.embedded(tmp_path):
                pytest.fail("two brokers in one folder")
        with onelog.embedded() as other:
            # What failed to start has given back its place.
            assert {first.nameserver, other.nameserver} == {"embedded-1:9876", "embedded-2:9876"}


def test_settings_are_those_of_the_configuration() -> None:
    with onelog.embedded(broker__auto_create_topics=False, broker__name="mine") as mq:
        with mq.producer("shop") as producer, pytest.raises(OnelogError, match="orders"):
            producer.send(Message("orders", b"x"))
        mq.create_topic("orders")
        with mq.producer("shop") as producer:
            assert producer.send(Message("orders", b"x")).queue.broker == "mine"


@pytest.mark.usefixtures("own_prefix")
def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'broker\.prot'.*broker\.port"):
        with onelog.embedded(broker__prot=1):
            pytest.fail("started")
    assert own_folders() == set()


# With asyncio.


async def test_it_runs_on_the_running_loop() -> None:
    threads = threading.active_count()
    got: list[bytes] = []
    async with onelog.embedded() as mq:
        sockets = open_sockets()
        await mq.create_topic("orders", queues=1)
        async with mq.push_consumer("billing") as consumer, mq.producer("shop") as producer:

            @consumer.subscribe("orders")
            async def bill(message: ReceivedMessage) -> None:
                got.append(message.body)

            await consumer.start()
            for number in range(10):
                await producer.send(Message("orders", b"%d" % number))
            await eventually(lambda: len(got) == 10)
        async with mq.pull_consumer("readers", start="first") as reader:
            reader.subscribe("orders")
            read: list[bytes] = []
            while len(read) < 10:
                read += [message.body for message in await reader.poll(1.0)]
        assert open_sockets() == sockets
    assert got == read == [b"%d" % number for number in range(10)]
    assert not mq.folder.exists()
    assert threading.active_count() <= threads + 5  # asyncio's own, for files.


async def test_clients_on_other_loops_reach_it() -> None:
    async with onelog.embedded() as mq:
        await mq.create_topic("orders", queues=1)
        got: list[bytes] = []

        def elsewhere() -> None:
            async def send() -> None:
                async with AsyncProducer("shop", nameserver=mq.nameserver) as producer:
                    await producer.send(Message("orders", b"from another loop"))

            asyncio.run(send())
            with Producer("shop", nameserver=mq.nameserver) as producer:
                producer.send(Message("orders", b"from the background"))

        async with mq.push_consumer("billing") as consumer:

            @consumer.subscribe("orders")
            def bill(message: ReceivedMessage) -> None:
                got.append(message.body)

            await consumer.start()
            await asyncio.to_thread(elsewhere)
            await eventually(lambda: len(got) == 2)
    assert got == [b"from another loop", b"from the background"]


async def test_asyncio_clients_reach_one_that_runs_in_the_background() -> None:
    with onelog.embedded() as mq:
        mq.create_topic("orders", queues=1)
        got: list[bytes] = []
        async with (
            AsyncPushConsumer("billing", nameserver=mq.nameserver) as consumer,
            AsyncProducer("shop", nameserver=mq.nameserver) as producer,
        ):

            @consumer.subscribe("orders")
            def bill(message: ReceivedMessage) -> None:
                got.append(message.body)

            await consumer.start()
            for number in range(20):
                await producer.send(Message("orders", b"%d" % number))
            await eventually(lambda: len(got) == 20)
    assert got == [b"%d" % number for number in range(20)]


async def test_clients_learn_that_it_ended() -> None:
    async with contextlib.AsyncExitStack() as stack:
        mq = await stack.enter_async_context(onelog.embedded())
        async with mq.producer("shop", retries=0, timeout=5.0) as producer:
            await producer.send(Message("orders", b"x"))
            await stack.aclose()
            with pytest.raises(OnelogError):
                await producer.send(Message("orders", b"y"))
    async with mq.admin() as admin:
        with pytest.raises(NameserversUnreachableError, match=mq.nameserver):
            await admin.clusters.masters(None, None)


# With a port.


async def test_with_a_port_others_reach_it_too() -> None:
    async with onelog.embedded(port=0) as mq:
        await mq.create_topic("orders")
        host, _, port = mq.nameserver.rpartition(":")
        assert host == "127.0.0.1"
        outsider = Client(*await asyncio.open_connection(host, int(port)))
        ask = encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "orders"})
        await outsider.send(b"".join(ask))
        route = (await outsider.receive_command()).body
        assert b'"brokerAddrs"' in route
        broker = bytes(route).split(b'"127.0.0.1:')[1].split(b'"')[0]
        connected = Client(*await asyncio.open_connection(host, int(broker)))
        ask = encode_request(RequestCode.GET_MAX_OFFSET, 1, {"topic": "orders", "queueId": "0"})
        await connected.send(b"".join(ask))
        assert (await connected.receive_command()).ext["offset"] == "0"
        sockets = open_sockets()
        async with mq.producer("shop") as producer:
            await producer.send(Message("orders", b"x"))
            assert open_sockets() == sockets
        connected.close()
        outsider.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))


# Where the files are.


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(embedded_broker, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


def test_shared_memory_is_used_where_it_is_large_enough(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with onelog.embedded() as mq:
        assert mq.folder.parent == parent
    monkeypatch.setattr(embedded_broker, "SHARED_MEMORY_BYTES_MIN", 1 << 60)
    with onelog.embedded() as mq:
        assert mq.folder.parent == tmp_path
    monkeypatch.setattr(embedded_broker, "SHARED_MEMORY", tmp_path / "nowhere")
    with onelog.embedded() as mq:
        assert mq.folder.parent == tmp_path


def test_what_a_killed_process_left_behind_is_removed(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with onelog.embedded() as living:
        left = parent / f"{embedded_broker.FOLDER_PREFIX}left"
        shutil.copytree(living.folder, left)
        fresh = parent / f"{embedded_broker.FOLDER_PREFIX}fresh"
        shutil.copytree(living.folder, fresh)
        foreign = parent / "something-else"
        foreign.mkdir()
        hours_ago = time.time() - 7200
        for folder in (left, living.folder, foreign):
            os.utime(folder, (hours_ago, hours_ago))
        with onelog.embedded():
            assert not left.exists()
            assert living.folder.exists()
            assert fresh.exists()
            assert foreign.exists()


# Forking.


def _send_in_child(mq: EmbeddedBroker) -> bytes:
    try:
        with Producer("shop", nameserver=mq.nameserver, retries=0, timeout=5.0) as producer:
            producer.send(Message("orders", b"x"))
    except OnelogError as error:
        return str(error).encode()
    return b"sent"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_that_the_broker_stayed_behind() -> None:
    with onelog.embedded() as mq:
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                os.write(writes, _send_in_child(mq))
            finally:
                os._exit(0)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
    assert b"no broker of this process listens on embedded-" in said
