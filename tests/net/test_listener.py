import asyncio
import logging
import socket
import struct
from pathlib import Path
from unittest import mock

import pytest

from onelog.clock import ManualClock
from onelog.config import TlsConfig
from onelog.errors import ListenError
from onelog.net.connection import Limits
from onelog.net.listener import Listener
from onelog.net.tls import Tls, client_context
from tests.net.conftest import Listen
from tests.net.sessions import Answering, Client, Echo, until

GARBAGE = b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"


async def say(client: Client, data: bytes) -> bytes:
    await client.send(data)
    return await client.receive(len(data))


async def test_plain_and_tls_clients_share_a_port(listen: Listen) -> None:
    listener = await listen(Echo, tls=Tls(TlsConfig(mode="permissive")))
    plain = await Client.connect(listener)
    secure = await Client.connect(listener, client_context())
    assert await say(plain, b"plain") == b"plain"
    assert await say(secure, b"secret" * 100_000) == b"secret" * 100_000
    assert sorted(connection.secure for connection in listener.connections) == [False, True]
    plain.close()
    secure.close()


async def test_enforcing_takes_only_tls(listen: Listen, caplog: pytest.LogCaptureFixture) -> None:
    listener = await listen(Echo, tls=Tls(TlsConfig(mode="enforcing")))
    plain = await Client.connect(listener)
    await plain.send(b"plain")
    assert await plain.is_closed()
    assert caplog.text.count("does not speak TLS") == 1
    secure = await Client.connect(listener, client_context())
    assert await say(secure, b"secret") == b"secret"
    plain.close()
    secure.close()


async def test_disabled_takes_a_handshake_for_garbage(listen: Listen) -> None:
    listener = await listen(Answering, tls=Tls(TlsConfig(mode="disabled")))
    with pytest.raises((ConnectionError, OSError)):
        await Client.connect(listener, client_context())


async def test_a_certificate_of_ones_own_is_shown(
    listen: Listen, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    config = TlsConfig(mode="permissive", cert_path=str(cert), key_path=str(key))
    listener = await listen(Echo, tls=Tls(config))
    reader, writer = await asyncio.open_connection(
        *listener.address, ssl=client_context(cert), server_hostname="broker.example"
    )
    client = Client(reader, writer)
    assert await say(client, b"hello") == b"hello"
    client.close()


async def test_a_certificate_that_cannot_be_read_is_said_and_plain_clients_are_served(
    listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    config = TlsConfig(mode="permissive", cert_path="/nowhere/cert.pem", key_path="/nowhere/k")
    listener = await listen(Echo, tls=Tls(config))
    with pytest.raises((ConnectionError, OSError)):
        await Client.connect(listener, client_context())
    assert "tls.cert_path /nowhere/cert.pem" in caplog.text
    plain = await Client.connect(listener)
    assert await say(plain, b"plain") == b"plain"
    plain.close()


async def test_a_handshake_that_goes_wrong_is_closed_and_said_once(
    listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    listener = await listen(Echo, tls=Tls(TlsConfig(mode="permissive")))
    client = await Client.connect(listener)
    await client.send(b"\x16" + GARBAGE)
    while await client.reader.read(100):
        pass
    assert caplog.text.count("no TLS") == 1
    assert not listener.connections
    client.close()


@pytest.mark.parametrize("mode", ["disabled", "permissive"])
@pytest.mark.parametrize(
    "data", [GARBAGE, struct.pack(">i", 2**31 - 1), b"\xff" * 9, struct.pack(">iI", 4, 9)]
)
async def test_garbage_is_closed_and_said_once(
    listen: Listen, caplog: pytest.LogCaptureFixture, mode: str, data: bytes
) -> None:
    listener = await listen(Answering, tls=Tls(TlsConfig(mode=mode)))  # type: ignore[arg-type]
    client = await Client.connect(listener)
    await client.send(data)
    assert await client.is_closed()
    assert caplog.text.count("sent what is no request") == 1
    client.close()


async def test_half_a_frame_and_then_silence_is_closed_when_the_time_is_up(
    listen: Listen, clock: ManualClock
) -> None:
    listener = await listen(Answering)
    client = await Client.connect(listener)
    await client.send(struct.pack(">i", 1000) + b"half")
    await until(lambda: listener.connections)
    listener.sweep()
    clock.advance(1)
    listener.sweep()
    clock.advance(119_999)
    listener.sweep()
    assert listener.connections
    clock.advance(1)
    listener.sweep()
    assert await client.is_closed()
    await until(lambda: not listener.connections)
    client.close()


async def test_a_client_that_never_says_anything_is_closed_when_the_time_is_up(
    listen: Listen, clock: ManualClock
) -> None:
    listener = await listen(Echo, tls=Tls(TlsConfig(mode="permissive")))
    client = await Client.connect(listener)
    await until(lambda: listener._silent)
    clock.advance(119_999)
    listener.sweep()
    assert listener._silent
    clock.advance(1)
    listener.sweep()
    assert await client.is_closed()
    assert not listener._silent
    client.close()


async def test_a_client_that_leaves_before_it_says_anything_is_forgotten(listen: Listen) -> None:
    listener = await listen(Echo, tls=Tls(TlsConfig(mode="permissive")))
    client = await Client.connect(listener)
    await until(lambda: listener._silent)
    client.close()
    await until(lambda: not listener._silent)


@pytest.mark.parametrize("mode", ["disabled", "permissive"])
async def test_connections_beyond_the_limit_are_refused_and_said_once(
    listen: Listen, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    listener = await listen(
        Echo,
        limits=Limits(connections_max=2),
        tls=Tls(TlsConfig(mode=mode)),  # type: ignore[arg-type]
    )
    first, second = await Client.connect(listener), await Client.connect(listener)
    assert await say(first, b"x") == b"x"
    for _ in range(3):
        refused = await Client.connect(listener)
        assert await refused.is_closed()
        refused.close()
    listener.sweep()
    listener.sweep()
    assert caplog.text.count("3 connections refused: 2 are open already") == 1
    first.close()
    await until(lambda: not listener.connections or mode == "disabled")
    second.close()


async def test_a_place_that_becomes_free_is_taken_again(listen: Listen) -> None:
    listener = await listen(Echo, limits=Limits(connections_max=1))
    for _ in range(3):
        client = await Client.connect(listener)
        assert await say(client, b"x") == b"x"
        client.close()
        await until(lambda: not listener.connections)


async def test_a_port_that_is_taken_is_said(listen: Listen) -> None:
    listener = await listen(Echo)
    host, port = listener.address
    with pytest.raises(ListenError, match=f"cannot listen on {host}:{port}: Address already in"):
        await listen(Echo, port=port)


async def test_a_host_that_is_not_ours_is_said(listen: Listen) -> None:
    with pytest.raises(ListenError, match="cannot listen on"):
        await listen(Echo, host="192.0.2.1")
    with pytest.raises(ListenError, match="cannot listen on"):
        await listen(Echo, host="no such host")


async def test_a_name_with_two_addresses_is_served_on_one_port(listen: Listen) -> None:
    listener = await listen(Echo, host="localhost")
    port = listener.address[1]
    addresses = await asyncio.get_running_loop().getaddrinfo(
        "localhost", port, type=socket.SOCK_STREAM
    )
    for *_, address in addresses:
        client = Client(*await asyncio.open_connection(str(address[0]), port))
        assert await say(client, b"x") == b"x"
        client.close()


async def test_close_sends_what_was_written_and_ends_all_connections(clock: ManualClock) -> None:
    tls = Tls(TlsConfig(mode="permissive"))
    listener = await Listener.open("127.0.0.1", 0, Echo, clock=clock, tls=tls)
    talking, silent = await Client.connect(listener), await Client.connect(listener)
    assert await say(talking, b"x") == b"x"
    await until(lambda: listener._silent)
    (connection,) = listener.connections
    connection.write(b"last words")
    await listener.close()
    assert await talking.receive(10) == b"last words"
    assert await talking.is_closed()
    assert await silent.is_closed()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await Client.connect(listener)
    talking.close()
    silent.close()


async def test_hundreds_of_idle_connections_do_not_disturb_one_that_works(listen: Listen) -> None:
    listener = await listen(Answering, tls=Tls(TlsConfig(mode="permissive")))
    idle = [await Client.connect(listener) for _ in range(300)]
    for client in idle[::2]:
        client.writer.write(b"\0")
    client = await Client.connect(listener)
    await client.send(GARBAGE)
    assert await client.is_closed()
    await until(lambda: len(listener.connections) == 150 and len(listener._silent) == 150)
    for each in [client, *idle]:
        each.close()
    await until(lambda: not listener.connections and not listener._silent)


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop's methods cannot be replaced
async def test_running_out_of_descriptors_is_survived(
    listen: Listen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR)
    loop = asyncio.get_running_loop()
    listener = await listen(Echo)
    accept, failures = loop.sock_accept, [OSError(24, "Too many open files")]

    async def failing(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", failing)
    first, second = await Client.connect(listener), await Client.connect(listener)
    assert await say(first, b"x") == b"x"
    assert await say(second, b"y") == b"y"
    assert caplog.text.count("accepting connections failed") == 1
    assert "ulimit -n" in caplog.text
    first.close()
    second.close()


async def test_a_socket_that_cannot_be_taken_is_closed_and_the_next_one_accepted(
    listen: Listen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = await listen(Echo)
    monkeypatch.setattr(listener, "_greet", mock.Mock(side_effect=[OSError(22, "gone"), None]))
    lost = await Client.connect(listener)
    assert await lost.is_closed()
    monkeypatch.undo()
    kept = await Client.connect(listener)
    assert await say(kept, b"x") == b"x"
    assert "accepting connections works again, after 1 failures" in caplog.text
    lost.close()
    kept.close()


async def test_an_error_does_not_end_the_closing_of_idle_connections(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.net.listener.SWEEP_SECONDS", 0.001)
    swept = asyncio.Event()
    failures: list[Exception] = [ValueError("a bug"), OSError(9, "closed")]

    def sweep() -> None:
        if failures:
            raise failures.pop()
        swept.set()

    listener = await listen(Echo)
    monkeypatch.setattr(listener, "sweep", sweep)
    async with asyncio.timeout(5):
        await swept.wait()
