import asyncio
import dataclasses
import logging
from pathlib import Path

import pytest

from onelog.clock import ManualClock
from onelog.config import NameserverConfig, TlsConfig
from onelog.errors import ConfigError, ListenError
from onelog.nameserver.server import NameServer, serve_nameserver
from onelog.net.peer import Peer
from onelog.net.tls import client_context
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.registration import DataVersion
from tests.nameserver.test_session import BROKER, register
from tests.net.sessions import Client
from tests.waiting import eventually

KEY = {"namespace": "ns", "key": "k"}


async def has_route(peer: Peer) -> bool:
    answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    return answer.code == 0


async def test_a_silent_broker_is_dropped_after_two_minutes_and_its_connection_closed(
    server: NameServer, peer: Peer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await Peer.connect(*server.address)
    await register(broker)
    clock.advance(120_000)
    server.scan()
    assert await has_route(peer)
    clock.advance(1)
    server.scan()
    assert not await has_route(peer)
    await eventually(lambda: not broker.is_open)
    assert caplog.text.count("broker '10.0.0.1:10911' of 'c' dropped: it was silent") == 1


async def test_an_error_does_not_end_the_search_for_silent_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = NameserverConfig(port=0, kv_path=str(tmp_path / "kv.json"), scan_interval_ms=1)
    server = await serve_nameserver(config)
    scanned, failures = asyncio.Event(), [KeyError("a bug"), OSError(24, "Too many open files")]

    def scan() -> None:
        if failures:
            raise failures.pop()
        scanned.set()

    monkeypatch.setattr(server, "scan", scan)
    async with asyncio.timeout(30):
        await scanned.wait()
    await server.close()


@pytest.mark.parametrize("sign", [RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION])
async def test_signs_of_life_keep_a_broker(
    server: NameServer, peer: Peer, clock: ManualClock, sign: RequestCode
) -> None:
    await register(peer)
    for _ in range(5):
        clock.advance(100_000)
        await peer.ask(sign, BROKER, DataVersion().encode())
        server.scan()
    assert await has_route(peer)


async def test_a_broker_may_ask_for_a_shorter_time(
    server: NameServer, peer: Peer, clock: ManualClock
) -> None:
    broker = await Peer.connect(*server.address)
    await register(broker, heartbeatTimeoutMillis="10000")
    clock.advance(10_001)
    server.scan()
    assert not await has_route(peer)
    await broker.close()


async def test_scanning_goes_on_by_itself(config: NameserverConfig, clock: ManualClock) -> None:
    quick = dataclasses.replace(config, scan_interval_ms=10, broker_expiry_ms=1000)
    server = await serve_nameserver(quick, clock=clock)
    broker = await Peer.connect(*server.address)
    await register(broker)
    clock.advance(1001)
    await eventually(lambda: not broker.is_open)
    await server.close()


async def test_keys_survive_a_restart(config: NameserverConfig) -> None:
    first = await serve_nameserver(config)
    peer = await Peer.connect(*first.address)
    saved = await asyncio.gather(
        *(
            peer.ask(RequestCode.PUT_KV_CONFIG, KEY | {"key": f"k{n}", "value": "v"})
            for n in range(20)
        )
    )
    assert {answer.code for answer in saved} == {0}
    await peer.close()
    await first.close()
    second = await serve_nameserver(config)
    peer = await Peer.connect(*second.address)
    for n in range(20):
        answer = await peer.ask(RequestCode.GET_KV_CONFIG, KEY | {"key": f"k{n}"})
        assert answer.ext == {"value": "v"}
    await peer.close()
    await second.close()


async def test_a_key_that_cannot_be_saved_is_said(
    server: NameServer, peer: Peer, config: NameserverConfig, caplog: pytest.LogCaptureFixture
) -> None:
    Path(config.kv_path).parent.write_text("a file where a folder should be")
    answer = await peer.ask(RequestCode.PUT_KV_CONFIG, KEY | {"value": "v"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "in force, but not saved" in str(answer.remark)
    assert "saving the key-value configuration failed" in caplog.text


async def test_a_broken_file_stops_the_start(config: NameserverConfig, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"broken\.json"):
        await serve_nameserver(dataclasses.replace(config, kv_path=str(path)))


async def test_a_taken_port_stops_the_start(server: NameServer, config: NameserverConfig) -> None:
    with pytest.raises(ListenError, match="cannot listen on"):
        await serve_nameserver(dataclasses.replace(config, port=server.address[1]))


async def test_tls_and_plain_clients_share_the_port(config: NameserverConfig) -> None:
    server = await serve_nameserver(config, tls=TlsConfig(mode="permissive"))
    plain = await Peer.connect(*server.address)
    secure = await Peer.connect(*server.address, tls=client_context())
    await register(secure)
    assert await has_route(plain)
    await secure.close()
    await plain.close()
    await server.close()


async def test_nodes_are_independent(config: NameserverConfig, tmp_path: Path) -> None:
    servers = [
        await serve_nameserver(dataclasses.replace(config, kv_path=str(tmp_path / f"{n}.json")))
        for n in range(2)
    ]
    peers = [await Peer.connect(*server.address) for server in servers]
    await register(peers[0])
    assert [await has_route(peer) for peer in peers] == [True, False]
    for peer in peers:
        await peer.close()
    for server in servers:
        await server.close()


async def test_garbage_hurts_nobody_else(
    server: NameServer, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await register(peer)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff\0\0\0\0", b"\xff" * 100):
        client = Client(*await asyncio.open_connection(*server.address))
        await client.send(garbage)
        assert await client.is_closed()
        client.close()
    assert caplog.text.count("sent what is no request") == 3
    assert await has_route(peer)
