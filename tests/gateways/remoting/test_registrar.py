"""The broker's calls to the name servers."""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from onelog.clock import SystemClock
from onelog.config import NameserverConfig, TlsConfig, Value
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.nameserver.routes import Endpoint
from onelog.nameserver.server import NameServer, serve_nameserver
from onelog.net.connection import Connection
from onelog.net.listener import Listener
from onelog.net.tls import write_self_signed
from onelog.wire.remoting.registration import RegisterBrokerBody
from tests.gateways.remoting.live import broker, remoting
from tests.ports import free_port
from tests.waiting import eventually


async def nameserver(folder: Path, port: int = 0) -> NameServer:
    return await serve_nameserver(NameserverConfig(port=port, kv_path=str(folder / "kv.json")))


def addresses(*servers: NameServer) -> str:
    return ";".join(f"{host}:{port}" for host, port in (server.address for server in servers))


async def test_a_broker_registers_with_every_name_server_and_leaves_cleanly(tmp_path: Path) -> None:
    first, second = await nameserver(tmp_path / "1"), await nameserver(tmp_path / "2")
    async with broker(tmp_path, broker__nameservers=addresses(first, second)) as server:
        for each in (first, second):
            route = each.registry.routes.route("TBW102")
            assert route is not None
            assert route.broker_datas[0].broker_addrs == {0: server.address}
    for each in (first, second):
        assert each.registry.routes.route("TBW102") is None
        await each.close()


async def test_a_new_topic_is_registered_at_once_and_a_deleted_one_goes(tmp_path: Path) -> None:
    names = await nameserver(tmp_path)
    async with broker(tmp_path, broker__nameservers=addresses(names)) as server:
        server.broker.topics.create(SELF, TopicConfig("fresh", 3, 5))
        await eventually(lambda: names.registry.routes.route("fresh") is not None)
        route = names.registry.routes.route("fresh")
        assert route is not None
        queues = route.queue_datas[0]
        assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (3, 5, 6)
    await names.close()


async def test_very_many_topics_are_sent_only_when_they_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.gateways.remoting.registrar.LARGE_COUNT", 1)
    names = await nameserver(tmp_path)
    async with broker(tmp_path, broker__nameservers=addresses(names)) as server:
        registrar = remoting(server)._registrar
        assert registrar is not None
        bodies = mock.Mock(side_effect=registrar.body)
        monkeypatch.setattr(registrar, "body", bodies)
        for _ in range(3):
            await registrar.register()
        assert bodies.call_count == 0
        server.broker.topics.create(SELF, TopicConfig("fresh", 1, 1))
        await eventually(lambda: names.registry.routes.route("fresh") is not None)
        assert bodies.call_count == 1
        names.registry.routes.unregister(
            Endpoint(server.config.broker.cluster, server.address), server.config.broker.name
        )
        assert names.registry.routes.route("fresh") is None
        await registrar.register()
        assert names.registry.routes.route("fresh") is not None
    await names.close()


async def test_a_bug_does_not_end_the_registrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = await nameserver(tmp_path)
    async with broker(tmp_path, broker__nameservers=addresses(names)) as server:
        registrar = remoting(server)._registrar
        assert registrar is not None
        body, failures = registrar.body, [OSError(24, "Too many open files")]

        def failing() -> RegisterBrokerBody:
            if failures:
                raise failures.pop()
            return body()

        monkeypatch.setattr(registrar, "body", failing)
        server.broker.topics.create(SELF, TopicConfig("unlucky", 1, 1))
        await eventually(lambda: not failures)
        server.broker.topics.create(SELF, TopicConfig("lucky", 1, 1))
        await eventually(lambda: names.registry.routes.route("lucky") is not None)
    await names.close()


async def test_a_name_server_that_comes_back_is_told_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    names = await nameserver(tmp_path, port)
    where = addresses(names)
    async with broker(
        tmp_path, broker__nameservers=where, broker__register_interval_ms=1_000
    ) as server:
        await names.close()
        server.broker.topics.create(SELF, TopicConfig("meanwhile", 1, 1))
        await eventually(lambda: "cannot be reached" in caplog.text)
        names = await nameserver(tmp_path, port)
        await eventually(lambda: names.registry.routes.route("meanwhile") is not None)
        assert caplog.text.count("cannot be reached") == 1
    await names.close()


class _Mute:
    """Accepts, and never answers: a half-dead name server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def data_received(self, data: bytes) -> None:
        return

    def writable(self) -> None:
        return

    def connection_lost(self) -> None:
        return


@contextlib.asynccontextmanager
async def half_dead() -> AsyncIterator[str]:
    """The address of a name server that accepts, and never answers."""
    mute = await Listener.open("127.0.0.1", 0, _Mute, clock=SystemClock())
    try:
        yield f"127.0.0.1:{mute.address[1]}"
    finally:
        await mute.close()


async def test_a_half_dead_name_server_does_not_hold_up_the_others(tmp_path: Path) -> None:
    names = await nameserver(tmp_path)
    async with half_dead() as mute:
        where = f"{mute};127.0.0.1:{free_port()};{addresses(names)}"
        began = time.monotonic()
        async with broker(
            tmp_path,
            broker__nameservers=where,
            broker__register_timeout_ms=60_000,
        ) as server:
            # The half-dead one is still being waited for, a minute long.
            assert names.registry.routes.route("TBW102") is not None
            for number in range(3):
                server.broker.topics.create(SELF, TopicConfig(f"t{number}", 1, 1))
                await eventually(lambda: names.registry.routes.route("t0") is not None)
            await eventually(lambda: names.registry.routes.route("t2") is not None)
        assert names.registry.routes.route("TBW102") is None
        assert time.monotonic() - began < 30
    await names.close()


async def test_a_name_server_that_was_gone_is_told_soon_after_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    where = f"127.0.0.1:{port}"
    async with broker(tmp_path, broker__nameservers=where, broker__register_interval_ms=60_000):
        names = await nameserver(tmp_path, port)
        await eventually(lambda: names.registry.routes.route("TBW102") is not None)
    await names.close()


async def test_a_slave_registers_under_its_id_and_learns_where_its_master_is(
    tmp_path: Path,
) -> None:
    names = await nameserver(tmp_path)
    async with broker(tmp_path, broker__nameservers="", broker__broker_id=2) as slave:
        found: list[tuple[str, str]] = []
        slave.context.replica_status.found_master = lambda *master: found.append(master)
        registrar = remoting(slave)._registrar
        assert registrar is not None
        slave.broker.admin.config = replace(slave.broker.admin.config, nameservers=addresses(names))
        await registrar.register()
        assert registrar.master is None
        async with broker(tmp_path / "m", broker__nameservers=addresses(names)) as master:
            # It asks again by itself, because it was told of no master.
            port = master.config.broker.port
            await eventually(lambda: bool(found))
            assert found == [(master.address, f"127.0.0.1:{port + 1}")] == [registrar.master]
            (data,) = names.registry.routes.route("TBW102").broker_datas  # type: ignore[union-attr]
            assert data.broker_addrs == {0: master.address, 2: slave.address}
    await names.close()


async def test_a_later_master_takes_the_place_of_an_earlier_that_is_still_listed(
    tmp_path: Path,
) -> None:
    names = await nameserver(tmp_path)
    where = addresses(names)
    async with (
        broker(tmp_path / "old", broker__nameservers=where) as old,
        broker(tmp_path / "new", broker__nameservers=where, broker__broker_id=1) as new,
    ):
        old.context.replica_status.epoch = 1
        new.context.replica_status.broker_id, new.context.replica_status.epoch = 0, 2
        for server in (old, new, old):
            registrar = remoting(server)._registrar
            assert registrar is not None
            await registrar.register()
        (data,) = names.registry.routes.route("TBW102").broker_datas  # type: ignore[union-attr]
        assert data.broker_addrs == {0: new.address}
    await names.close()


def certificate(folder: Path, *names: str) -> dict[str, Value]:
    """Settings of a server with a certificate for these names."""
    folder.mkdir()
    cert_path, key_path = write_self_signed(folder, names)
    return {"tls__cert_path": str(cert_path), "tls__key_path": str(key_path)}


async def locked_nameserver(folder: Path, **files: Value) -> NameServer:
    """A name server that demands TLS."""
    config = NameserverConfig(port=0, kv_path=str(folder / "kv.json"))
    given: dict[str, Any] = {key.removeprefix("tls__"): value for key, value in files.items()}
    return await serve_nameserver(config, tls=TlsConfig(mode="enforcing", **given))


def is_registered(names: NameServer) -> bool:
    return names.registry.routes.route("TBW102") is not None


async def test_a_broker_that_demands_tls_registers_with_a_name_server_that_does(
    tmp_path: Path,
) -> None:
    names = await locked_nameserver(tmp_path)
    async with broker(tmp_path, broker__nameservers=addresses(names), tls__mode="enforcing"):
        assert is_registered(names)
    assert not is_registered(names)
    await names.close()


@pytest.mark.parametrize(("outgoing", "works"), [("on", True), ("off", False), ("auto", False)])
async def test_whether_a_broker_calls_with_tls_can_be_said(
    tmp_path: Path, outgoing: str, works: bool, caplog: pytest.LogCaptureFixture
) -> None:
    names = await locked_nameserver(tmp_path)
    where = addresses(names)
    async with broker(tmp_path, broker__nameservers=where, tls__outgoing=outgoing):
        assert is_registered(names) is works
    assert ("if it demands TLS, set tls.outgoing=on" in caplog.text) is not works
    await names.close()


async def test_a_name_server_must_prove_itself_to_the_authority(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = certificate(tmp_path / "ours", "127.0.0.1")
    foreign = certificate(tmp_path / "foreign", "127.0.0.1")
    misnamed = certificate(tmp_path / "misnamed", "example.org")
    names = [await locked_nameserver(tmp_path, **each) for each in (ours, foreign)]
    async with broker(
        tmp_path,
        broker__nameservers=addresses(*names),
        tls__mode="enforcing",
        tls__ca_path=ours["tls__cert_path"],
    ):
        assert [is_registered(each) for each in names] == [True, False]
        assert "certificate verify failed" in caplog.text
    names.append(await locked_nameserver(tmp_path, **misnamed))
    settings: dict[str, Value] = {
        "broker__nameservers": addresses(names[2]),
        "tls__mode": "enforcing",
        "tls__ca_path": misnamed["tls__cert_path"],
    }
    async with broker(tmp_path, **settings):
        assert not is_registered(names[2])
        assert "not valid for '127.0.0.1'" in caplog.text
    async with broker(tmp_path, **settings, tls__check_hostname=False):
        assert is_registered(names[2])
    for each in names:
        await each.close()
