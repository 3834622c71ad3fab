import asyncio
import contextlib
import logging
import socket
import struct
import threading
from functools import partial
from pathlib import Path
from typing import Literal
from unittest import mock

import pytest

from onelog.clock import ManualClock
from onelog.config import TlsConfig
from onelog.errors import ListenError
from onelog.net import listener as listener_module
from onelog.net.capacity import Capacity
from onelog.net.connection import Limits
from onelog.net.listener import Listener
from onelog.net.tls import Tls, client_context
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.frame import encode_request
from tests.net.conftest import Listen
from tests.net.sessions import Answering, Client, Echo
from tests.waiting import eventually

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
    await eventually(lambda: listener.connections)
    listener.sweep()
    clock.advance(1)
    listener.sweep()
    clock.advance(119_999)
    listener.sweep()
    assert listener.connections
    clock.advance(1)
    listener.sweep()
    assert await client.is_closed()
    await eventually(lambda: not listener.connections)
    client.close()


def keeps(capacity: Capacity, size: int) -> bool:
    return capacity.unread.total == size


@pytest.mark.parametrize("tls", [None, "permissive"])
async def test_a_byte_now_and_then_does_not_keep_an_unfinished_frame_alive(
    listen: Listen, clock: ManualClock, tls: Literal["permissive"] | None
) -> None:
    capacity = Capacity(clock=clock)
    listener = await listen(
        Answering,
        limits=Limits(capacity=capacity),
        tls=Tls(TlsConfig(mode=tls)) if tls is not None else None,
    )
    client = await Client.connect(listener, client_context() if tls is not None else None)
    await client.send(struct.pack(">i", 1000))
    for size in range(5, 10):
        await client.send(b"x")
        await eventually(partial(keeps, capacity, size))
        clock.advance(11_999)
        listener.sweep()
    assert len(listener.connections) == 1
    clock.advance(5)
    listener.sweep()
    assert await client.is_closed()
    await eventually(lambda: not listener.connections)
    assert capacity.unread.total == 0
    client.close()


async def test_frames_one_after_the_other_may_take_their_time(
    listen: Listen, clock: ManualClock
) -> None:
    capacity = Capacity(clock=clock)
    listener = await listen(Answering, limits=Limits(capacity=capacity))
    client = await Client.connect(listener)
    frame = b"".join(encode_request(RequestCode.HEART_BEAT, 1, {}, bytes(10)))
    await client.send(frame[:10])
    for _ in range(5):
        await eventually(lambda: capacity.unread.total == 10)
        clock.advance(59_000)
        listener.sweep()
        await client.send(frame[10:] + frame[:10])
        await client.receive_command()
    client.close()
    await eventually(lambda: not capacity.unread.total)


async def test_unfinished_frames_of_all_ports_have_a_limit_and_others_are_served(
    listen: Listen, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    capacity = Capacity(unread_bytes_max=10_000_000, clock=clock)
    ports = [await listen(Answering, limits=Limits(capacity=capacity)) for _ in range(2)]
    large = struct.pack(">i", 8_000_000)
    hostile = []
    for number in range(6):
        client = await Client.connect(ports[number % 2])
        hostile.append(client)
        clock.advance(100)
        with contextlib.suppress(ConnectionError):
            await client.send(large + bytes(3_000_000 - 4))
        await eventually(lambda: sum(len(port.connections) for port in ports) <= 3)
        assert capacity.unread.total <= 10_000_000
    healthy = await Client.connect(ports[0])
    body = bytes(2_000_000)
    await healthy.send(b"".join(encode_request(RequestCode.HEART_BEAT, 1, {}, body)))
    assert (await healthy.receive_command()).body == body
    assert await hostile[0].is_closed()
    assert caplog.text.count("unread bytes of all connections are its") == 1
    assert "net.unread_bytes_max = 10000000 allows no more" in caplog.text
    for client in (*hostile, healthy):
        client.close()
    await eventually(lambda: not capacity.unread.total)


async def test_a_client_that_never_says_anything_is_closed_when_the_time_is_up(
    listen: Listen, clock: ManualClock
) -> None:
    listener = await listen(Echo, tls=Tls(TlsConfig(mode="permissive")))
    client = await Client.connect(listener)
    await eventually(lambda: listener._silent)
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
    await eventually(lambda: listener._silent)
    client.close()
    await eventually(lambda: not listener._silent)


@pytest.mark.parametrize("mode", ["disabled", "permissive"])
async def test_connections_beyond_the_limit_are_refused_and_said_once(
    listen: Listen, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    listener = await listen(
        Echo,
        limits=Limits(capacity=Capacity(connections_max=2)),
        tls=Tls(TlsConfig(mode=mode)),  # type: ignore[arg-type]
    )
    first, second = await Client.connect(listener), await Client.connect(listener)
    assert await say(first, b"x") == b"x"
    for _ in range(3):
        refused = await Client.connect(listener)
        assert await refused.is_closed()
        refused.close()
    assert caplog.text.count("connection refused: 2 are open already; net.connections_max") == 1
    listener.sweep()
    listener.sweep()
    assert caplog.text.count("2 more connections refused") == 1
    first.close()
    await eventually(lambda: not listener.connections or mode == "disabled")
    second.close()


async def test_connections_of_all_ports_count_together(listen: Listen) -> None:
    capacity = Capacity(connections_max=2)
    ports = [await listen(Echo, limits=Limits(capacity=capacity)) for _ in range(3)]
    first, second = await Client.connect(ports[0]), await Client.connect(ports[1])
    assert await say(first, b"x") == await say(second, b"x") == b"x"
    third = await Client.connect(ports[2])
    assert await third.is_closed()
    first.close()
    await eventually(lambda: not ports[0].connections)
    fourth = await Client.connect(ports[2])
    assert await say(fourth, b"x") == b"x"
    await ports[1].close()
    assert len(capacity.listeners) == 2
    for client in (second, third, fourth):
        client.close()


async def test_connections_that_would_take_the_files_of_the_store_are_refused(
    listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as probe:
        descriptors = probe.fileno()
    listener = await listen(Echo, limits=Limits(capacity=Capacity(files_max=descriptors)))
    client = await Client.connect(listener)
    assert await client.is_closed()
    assert "raise the limit of open files (ulimit -n)" in caplog.text
    client.close()


async def test_a_handshake_that_never_ends_is_closed_when_its_time_is_up(
    listen: Listen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS_MAX", 0.2)
    listener = await listen(Echo, tls=Tls(TlsConfig(mode="permissive")))
    client = await Client.connect(listener)
    await client.send(b"\x16\x03\x01")
    assert await client.is_closed()
    await eventually(lambda: not listener.open_count)
    assert "no TLS" in caplog.text
    client.close()


async def test_a_client_that_says_goodbye_and_does_not_read_its_answer_is_closed(
    listen: Listen, clock: ManualClock
) -> None:
    listener = await listen(Echo)
    client = await Client.connect(listener)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.writer.write(bytes(8 << 20))
    client.writer.write_eof()
    await eventually(lambda: any(each.congested for each in listener.connections))
    listener.sweep()
    clock.advance(120_000)
    listener.sweep()
    await eventually(lambda: not listener.connections)
    client.close()


async def test_a_place_that_becomes_free_is_taken_again(listen: Listen) -> None:
    listener = await listen(Echo, limits=Limits(capacity=Capacity(connections_max=1)))
    for _ in range(3):
        client = await Client.connect(listener)
        assert await say(client, b"x") == b"x"
        client.close()
        await eventually(lambda: not listener.connections)


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
    await eventually(lambda: listener._silent)
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
    await eventually(lambda: len(listener.connections) == 150 and len(listener._silent) == 150)
    for each in [client, *idle]:
        each.close()
    await eventually(lambda: not listener.connections and not listener._silent)


async def test_running_out_of_descriptors_is_survived(
    listen: Listen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR)
    listener = await listen(Echo)
    accept, failures = socket.socket.accept, [OSError(24, "Too many open files")]

    def failing(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", failing)
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
    async with asyncio.timeout(30):
        await swept.wait()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_worker_prepares_what_the_first_connections_need(
    clock: ManualClock, *, fails: bool
) -> None:
    may_end, prepared = threading.Event(), list[bool]()

    def prepare() -> None:
        prepared.append(threading.current_thread() is threading.main_thread())
        may_end.wait(20)
        if fails:
            raise ImportError("not there")

    listener = await Listener.open("127.0.0.1", 0, Echo, clock=clock, prepare=prepare)
    first, second = await Client.connect(listener), await Client.connect(listener)
    await first.send(b"x")
    await eventually(lambda: prepared)
    assert listener.connections == set()
    assert listener.open_count
    may_end.set()
    assert await first.receive(1) == b"x"
    assert await say(second, b"y") == b"y"
    third = await Client.connect(listener)
    assert await say(third, b"z") == b"z"
    assert prepared == [False]
    for each in (first, second, third):
        each.close()
    await listener.close()
