"""The assembled broker: what it survives, and what it gives up cleanly."""

import asyncio
import base64
import contextlib
import json
import os
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from onelog.config_sources import Loaded, load
from onelog.errors import ConfigError, ListenError, PeerClosedError, StoreError, StoreLockedError
from onelog.gateways import GatewayContext
from onelog.gateways.remoting.gateway import HANDLERS
from onelog.message import LogOffset, NewMessage
from onelog.names import TIMER_TOPIC
from onelog.net import capacity as capacity_module
from onelog.net.capacity import checked_capacity, make_capacity
from onelog.net.connection import Connection
from onelog.net.peer import Peer
from onelog.net.tls import client_context, write_self_signed
from onelog.server import GATEWAYS, BrokerServer, nth_broker, running_broker, running_nameserver
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.frame import encode_request
from tests.gateways.remoting.live import SMALL, bodies, broker, client, remoting
from tests.gateways.remoting.popping import GROUP, TOPIC, popping
from tests.gateways.remoting.samples import SAMPLES
from tests.ports import free_port
from tests.waiting import eventually
from tests.wire.remoting.mutation import Mutation


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        for n in range(20):
            await one.send("t", b"%d" % n)
    async with broker(tmp_path) as server, client(server) as one:
        assert server.store.recovery.clean
        assert bodies(await one.pull("t", 0)) == [b"%d" % n for n in range(20)]


async def test_a_stop_ends_with_a_closed_store_whatever_fails_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise OSError("cannot say goodbye")

    server = BrokerServer(load(overrides={**SMALL, "broker.store_path": str(tmp_path / "store")}))
    await server.start()
    async with client(server) as one:
        await one.send("t", b"x")
    monkeypatch.setattr(remoting(server).routes, "close", refuse)
    with pytest.raises(OSError, match="goodbye"):
        await server.close()
    async with broker(tmp_path) as server:
        assert server.store.recovery.clean


async def test_a_second_broker_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with broker(tmp_path):
        with pytest.raises(StoreLockedError):
            async with broker(tmp_path):
                pass


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=str(port)):
            async with broker(tmp_path, broker__port=port):
                pass
    async with broker(tmp_path) as server:
        assert server.store.recovery.clean


class Echo:
    """A protocol with a port in the section of another: it says back what it hears."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self.said: list[str] = []

    async def listen(self) -> None:
        port = self._context.loaded.config.nameserver.port
        await self._context.listen(port, EchoSession)

    def refresh(self, loaded: Loaded) -> None:
        self.said.append("refresh")

    async def close(self) -> None:
        self.said.append("close")


class EchoSession:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        self._connection.write(data)

    def writable(self) -> None: ...
    def connection_lost(self) -> None: ...


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [*GATEWAYS, ("nameserver", f"{__name__}:Echo")]
    monkeypatch.setattr("onelog.server.GATEWAYS", listed)


async def test_ports_that_a_broker_chooses_are_its_own_before_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, tried = BrokerServer._start, list[int]()

    async def tried_first(server: BrokerServer) -> None:
        for port in (server.config.broker.port, server.config.kafka.port):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            tried.append(port)
        await start(server)

    monkeypatch.setattr(BrokerServer, "_start", tried_first)
    async with broker(tmp_path, kafka__port=-1) as server, client(server):
        assert tried == [server.config.broker.port, server.config.kafka.port]


@pytest.mark.usefixtures("echo")
async def test_a_protocol_is_served_that_is_listed_and_has_a_port(tmp_path: Path) -> None:
    async with broker(tmp_path, nameserver__port=free_port()) as server, client(server) as one:
        await one.send("t", b"x")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.config.nameserver.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        server.reconfigure({"broker.trace": "false"})
        gateway = server.gateways["nameserver"]
    assert isinstance(gateway, Echo)
    assert gateway.said == ["refresh", "close"]
    async with broker(tmp_path, nameserver__port=0) as server:
        assert list(server.gateways) == ["broker"]


@pytest.mark.usefixtures("echo")
async def test_a_usual_port_that_is_taken_is_left_out_and_one_that_was_asked_for_is_an_error(
    tmp_path: Path,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        asked = load(
            overrides={
                **SMALL,
                "broker.store_path": str(tmp_path / "store"),
                "nameserver.port": port,
            }
        )
        usual = Loaded(asked.config, {**asked.sources, "nameserver.port": "default"})
        async with running_broker(usual) as server, client(server) as one:
            await one.send("t", b"x")
            assert list(server.left_out) == ["nameserver"]
            assert str(port) in server.left_out["nameserver"]
        with pytest.raises(ListenError, match=rf":{port}: .* set nameserver\.port to another"):
            async with running_broker(asked):
                pass


@pytest.mark.usefixtures("echo")
def test_several_brokers_have_ports_side_by_side() -> None:
    loaded = load(overrides={"nameserver.port": 700})
    assert nth_broker(loaded, 0) == loaded
    third = nth_broker(loaded, 2)
    assert third.config.nameserver.port == 702
    assert third.config.broker == loaded.config.broker
    sections = ("nameserver", "kafka", "http", "amqp", "stomp", "mqtt", "grpc")
    off = load(overrides={f"{section}.port": 0 for section in sections})
    assert nth_broker(off, 2) == off


async def test_both_ports_give_the_same_answers(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__vip_port=-1) as server, client(server) as one:
        await one.send("t", b"x")
        second = server.config.broker.second_port
        assert second == server.config.broker.port - 2
        reader, writer = await asyncio.open_connection("127.0.0.1", second)
        writer.close()
        await writer.wait_closed()
        assert not await reader.read(1)


async def test_only_settings_that_may_change_do(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        server.reconfigure({"broker.auto_create_topics": "false", "broker.trace": "false"})
        assert not server.core.topics.auto_create
        assert b"TRACE_ON\x01false" in remoting(server).added_properties
        with pytest.raises(ConfigError, match=r"broker\.port cannot change"):
            server.reconfigure({"broker.port": "1"})
        with pytest.raises(ConfigError, match=r"broker\.trace"):
            server.reconfigure({"broker.trace": "perhaps"})


def certificate(folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    return write_self_signed(folder, ("127.0.0.1",))


async def is_shown(server: BrokerServer, cert_path: Path) -> bool:
    """Whether a new client is shown this certificate."""
    try:
        peer = await Peer.connect(
            "127.0.0.1", server.config.broker.port, tls=client_context(cert_path)
        )
    except PeerClosedError:
        return False
    await peer.close()
    return True


async def test_new_clients_are_shown_a_changed_certificate_and_old_ones_go_on(
    tmp_path: Path,
) -> None:
    first, second = certificate(tmp_path / "1"), certificate(tmp_path / "2")
    async with broker(
        tmp_path, tls__mode="enforcing", tls__cert_path=str(first[0]), tls__key_path=str(first[1])
    ) as server:
        port = server.config.broker.port
        old = await Peer.connect("127.0.0.1", port, tls=client_context(first[0]))
        lines = f"tls.cert_path={second[0]}\ntls.key_path={second[1]}\n"
        answer = await old.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, lines.encode())
        assert answer.code == 0, answer.remark
        assert server.config.tls.cert_path == str(second[0])
        assert await is_shown(server, second[0])
        assert not await is_shown(server, first[0])
        assert (await old.ask(RequestCode.GET_BROKER_CONFIG)).code == 0
        await old.close()


async def test_a_certificate_that_is_no_good_is_refused_and_the_old_one_kept(
    tmp_path: Path,
) -> None:
    first, second = certificate(tmp_path / "1"), certificate(tmp_path / "2")
    async with (
        broker(tmp_path, tls__cert_path=str(first[0]), tls__key_path=str(first[1])) as server,
        client(server) as admin,
    ):
        lines = f"tls.cert_path={second[0]}\n"
        answer = await admin.ask(RequestCode.UPDATE_BROKER_CONFIG, lines.encode())
        assert answer.code != 0
        assert "the key does not belong to the certificate" in str(answer.remark)
        assert server.config.tls.cert_path == str(first[0])
        assert await is_shown(server, first[0])


async def test_a_certificate_that_is_no_good_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.pem.*No such file"):
        async with broker(tmp_path, tls__cert_path="none.pem", tls__key_path="none.key"):
            pytest.fail("it started")


async def test_an_advertised_name_must_be_an_address(tmp_path: Path) -> None:
    overrides = {
        **SMALL,
        "broker.store_path": str(tmp_path / "s"),
        "broker.advertised_host": "no-such-host.invalid",
    }
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid"):
        async with running_broker(load(overrides=overrides)):
            pass


async def test_broker_and_name_server_of_a_process_share_their_connections(tmp_path: Path) -> None:
    loaded = load(
        overrides={
            **SMALL,
            "broker.store_path": str(tmp_path / "store"),
            "nameserver.port": 0,
            "nameserver.kv_path": str(tmp_path / "kv.json"),
            "net.connections_max": 2,
        }
    )
    capacity = make_capacity(loaded.config.net)
    async with (
        running_nameserver(loaded, capacity) as nameserver,
        running_broker(loaded, capacity) as server,
    ):
        ask = b"".join(encode_request(RequestCode.GET_BROKER_CLUSTER_INFO, 1))
        places = [nameserver.address, ("127.0.0.1", server.config.broker.port)]
        writers = []
        for host, port in places:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(ask)
            assert await reader.read(4)
            writers.append(writer)
        for host, port in places:
            reader, writer = await asyncio.open_connection(host, port)
            writers.append(writer)
            assert await reader.read() == b""
        for writer in writers:
            writer.close()


def test_who_wants_more_connections_than_there_are_files_is_told_at_the_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity_module, "file_limit", lambda: 1_000)
    checked_capacity(load())
    checked_capacity(load(overrides={"net.connections_max": 750}))
    assert not caplog.messages
    checked_capacity(load(overrides={"net.connections_max": 751}))
    assert "net.connections_max = 751 does not fit the limit of 1000 open files" in caplog.text
    assert "ulimit -n" in caplog.text


async def test_garbage_closes_its_own_connection_and_no_other(tmp_path: Path) -> None:
    rng = random.Random(5)
    async with broker(tmp_path) as server, client(server) as good:
        for case in range(60):
            _, writer = await asyncio.open_connection("127.0.0.1", server.config.broker.port)
            junk = [b"\x7f\xff\xff\xff" + os.urandom(20), rng.randbytes(rng.randrange(1, 300))]
            writer.write(junk[case % 2])
            await writer.drain()
            writer.close()
        answer = await good.send("t", b"still here")
        assert answer.code == 0
        assert bodies(await good.pull("t", 0)) == [b"still here"]


async def test_mutated_requests_never_bring_the_broker_down(tmp_path: Path) -> None:
    mutation = Mutation(SAMPLES, random.Random(11))
    async with broker(tmp_path) as server, client(server) as good:
        for _ in range(400):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.config.broker.port)
            writer.write(mutation.frame())
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 20)
            writer.close()
        assert (await good.send("alive", b"yes")).code == 0
        assert bodies(await good.pull("alive", 0)) == [b"yes"]


async def test_every_request_without_fields_is_answered(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        for code in HANDLERS:
            answer = await one.ask(RequestCode(code))
            assert answer.code is not None
        assert (await one.send("t", b"x")).code == 0


class OnTheLoop:
    """Calls that wait for the disk, and were made in the thread of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[str] = []
        self.elsewhere = 0
        self._thread = threading.get_ident()
        for name in ("unlink", "fsync", "fdatasync", "rmdir"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def watched(*args: object, **more: object) -> object:
            if threading.get_ident() == self._thread:
                self.found.append(f"{name}{args}")
            else:
                self.elsewhere += 1
            return call(*args, **more)

        return watched


async def fill_segments(server: BrokerServer, count: int) -> None:
    """So many files of the log, all of them expired."""
    end = server.store.log_end + count * server.store.log.segment_bytes
    while server.store.log_end < end:
        server.store.append([NewMessage("orders", 0, bytes(90_000))])
    clock = mock.Mock(now_ms=lambda: server.core.stats.started_ms + 10**10)
    server.store.retention._clock = clock


async def test_files_are_deleted_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path, store__queue_file_entries=10) as server, client(server) as one:
        await one.send("orders", b"first")
        await fill_segments(server, 5)
        calls = OnTheLoop(monkeypatch)
        commit_log = tmp_path / "store" / "commitlog"
        assert (await one.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        await eventually(lambda: len(list(commit_log.iterdir())) == 1)
        queue_files = tmp_path / "store" / "consumequeue" / "orders" / "0"
        await eventually(lambda: len(list(queue_files.iterdir())) < 3)
        assert calls.elsewhere > 5
        assert calls.found == []
        assert server.store.min_offset("orders", 0) > 0


async def test_what_is_asked_for_is_deleted_however_many_files_it_takes_and_whatever_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.server.RETENTION_AGAIN_SECONDS", 0.001)
    few = 2
    async with (
        broker(tmp_path, store__retention_files_per_round=few) as server,
        client(server) as one,
    ):
        assert (await one.send("timed", b"waits", {"TIMER_DELAY_SEC": "3600"})).code == 0
        await fill_segments(server, 3 * few + 1)
        assert (await one.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        await eventually(lambda: len(server.store.log.segments) == 1)
        assert server.store.max_offset(TIMER_TOPIC, 0) == 2, "it was written again, once"


async def test_a_topic_is_deleted_beside_the_event_loop_and_can_be_made_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        for queue_id in range(4):
            await one.send("orders", b"old", e=queue_id)
        calls = OnTheLoop(monkeypatch)
        assert (await one.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")).code == 0
        assert (await one.send("orders", b"new")).code == 0
        assert bodies(await one.pull("orders", 0)) == [b"new"]
        assert calls.found == []
        await eventually(lambda: calls.elsewhere >= 5)
    assert not (tmp_path / "store" / "onelog-spare").exists()


async def test_others_are_served_while_files_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path) as server, client(server) as one, client(server) as other:
        await one.send("orders", b"first")
        await fill_segments(server, 3)
        deleting, may_end = threading.Event(), threading.Event()
        unlink = os.unlink

        def slow(*args: Any, **more: Any) -> None:
            deleting.set()
            may_end.wait(60)
            unlink(*args, **more)

        monkeypatch.setattr(os, "unlink", slow)
        rounds = []
        while not deleting.is_set():
            rounds = [asyncio.create_task(one.ask(RequestCode.DELETE_EXPIRED_COMMITLOG))]
            await asyncio.to_thread(deleting.wait, 0.1)
        rounds.append(asyncio.create_task(one.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)))
        assert (await other.send("orders", b"meanwhile")).code == 0
        may_end.set()
        assert [(await each).code for each in rounds] == [0, 0]


async def test_a_round_of_retention_that_fails_is_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("onelog.server.RETENTION_SECONDS", 0.001)
    rounds = asyncio.Event()
    failures: list[Exception] = [OSError(24, "Too many open files"), KeyError("a bug")]

    async def failing(*, manual: bool = False) -> None:
        if failures:
            raise failures.pop()
        rounds.set()

    async with broker(tmp_path) as server:
        monkeypatch.setattr(server, "retain", failing)
        async with asyncio.timeout(30):
            await rounds.wait()
    assert caplog.text.count("retention failed") == 1
    assert "retention works again, after 2 failures" in caplog.text


async def test_under_sync_flush_acknowledgements_of_leases_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path, store__flush="sync") as (server, popper):
        for number in range(4):
            await popper.send(b"%d" % number)
        one, two, three, four = await popper.pop()
        held: list[tuple[int, Callable[[StoreError | None], None]]] = []
        flush = server.store.when_flushed
        monkeypatch.setattr(server.store, "when_flushed", lambda *ticket: held.append(ticket))
        _, popped_ms, invisible_ms, revive, retry, *_ = three.receipt.split(" ")
        batch = {
            "c": GROUP,
            "t": TOPIC,
            "r": retry,
            "so": 2,
            "q": 0,
            "rq": int(revive),
            "pt": int(popped_ms),
            "it": int(invisible_ms),
            "b": base64.b64encode(b"\3").decode(),
        }
        asked = [
            asyncio.create_task(popper.ack(one)),
            asyncio.create_task(popper.change(two, 1_000)),
            asyncio.create_task(
                popper.words.ask(
                    RequestCode.BATCH_ACK_MESSAGE, json.dumps({"acks": [batch]}).encode()
                )
            ),
        ]
        await eventually(lambda: bool(held))  # Those of one tick wait together.
        assert (
            await popper.words.ask(RequestCode.GET_MAX_OFFSET, topic=TOPIC, queueId=0)
        ).code == 0
        assert not any(task.done() for task in asked), "answered before it was on disk"
        for offset, told in held:
            flush(LogOffset(offset), told)
        assert [(await task).code for task in asked] == [0, 0, 0]
        monkeypatch.undo()
        assert four.message.queue_offset == 3
