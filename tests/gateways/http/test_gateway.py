"""The HTTP port: its place in the server, its limits, and whom it lets in."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from onelog.errors import OnelogError
from onelog.gateways import GatewayContext
from onelog.gateways.http.problems import STATUSES, kind_of, status_of
from onelog.net.connection import Connection
from onelog.server import HTTP_ROUTES
from tests.gateways.http.live import SECONDS, http
from tests.gateways.remoting.live import broker


class Echo:
    """A session that says what it hears."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def data_received(self, data: bytes) -> None:
        if data == b"leave":
            self.connection.close()
        self.connection.write(data)

    def writable(self) -> None: ...
    def connection_lost(self) -> None: ...


def echo_routes(context: GatewayContext) -> list[object]:
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route, WebSocketRoute

    async def echo(websocket: object) -> None:
        await websocket.accept(subprotocol="echo")  # type: ignore[attr-defined]
        await context.serve_websocket(websocket, Echo)  # type: ignore[misc, arg-type]

    async def large(request: object) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(400):
                yield b"x" * (64 << 10)

        return StreamingResponse(parts())

    async def take(request: object) -> PlainTextResponse:
        from onelog.gateways.http.requests import body_of

        return PlainTextResponse(str(len(await body_of(request))))  # type: ignore[arg-type]

    return [
        WebSocketRoute("/echo", echo),
        Route("/large", large),
        Route("/take", take, methods=["POST"]),
    ]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes of another module, as gateways bring them."""
    place = f"{__name__}:echo_routes"
    sys.modules.setdefault(__name__, sys.modules[Echo.__module__])
    monkeypatch.setattr("onelog.server.HTTP_ROUTES", [*HTTP_ROUTES, place])


async def test_probes_are_answered(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, client):
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["role"]) == (200, "master")
        from onelog.errors import StoreFullError

        server.store.refuse_writes(StoreFullError("the disk is full"))
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "the disk is full")
        assert ready.headers["date"].endswith("GMT")
        assert ready.headers["x-content-type-options"] == "nosniff"
        server.store.refuse_writes(None)


async def test_a_broker_without_clients_has_imported_nothing_for_them(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from onelog.config_sources import load
from onelog.server import running_broker
async def main():
    settings = {{
        "broker.port": 0, "broker.vip_port": 0, "broker.nameservers": "", "kafka.port": 0,
        "http.port": -1, "broker.store_path": {str(tmp_path)!r}, "store.segment_bytes": 1 << 20,
    }}
    async with running_broker(load(overrides=settings)) as server:
        assert "http" in server.gateways
        print([each for each in sys.modules if each in ("starlette", "uvicorn")])
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.strip() == b"[]"


async def test_a_port_that_is_taken_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http(tmp_path) as (first, _):
        monkeypatch.setattr(type(first), "_has_configured_port", lambda self, section: False)
        async with broker(tmp_path / "second", http__port=first.config.http.port) as second:
            assert "http.port" in second.left_out["http"]


async def test_what_is_not_there_is_a_problem(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, client):
        found = await client.get("/v9/nothing")
        assert found.status_code == 404
        assert found.headers["content-type"] == "application/problem+json"
        assert found.json()["detail"] == "there is nothing at /v9/nothing"
        assert (await client.put("/healthz")).status_code == 405


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost:1"}, 200),
        ({"host": "mq.example.com"}, 200),
        ({"host": ""}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "https://shop.example.com"}, 200),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
    ],
)
@pytest.mark.usefixtures("echo")
async def test_pages_of_other_servers_cannot_change_anything(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    settings = {"http__hosts": "mq.example.com", "http__origins": "https://shop.example.com"}
    async with http(tmp_path, **settings) as (_, client):
        given = await client.post("/take", content=b"12345", headers=headers)
        assert given.status_code == status
        if status == 200:
            assert given.text == "5"


@pytest.mark.usefixtures("echo")
async def test_a_websocket_serves_sessions_of_other_gateways(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, _):
        at = f"ws://127.0.0.1:{server.config.http.port}/echo"
        async with connect(at, subprotocols=["echo"], open_timeout=SECONDS) as socket:  # type: ignore[list-item]
            assert socket.subprotocol == "echo"
            await socket.send(b"hello")
            assert await socket.recv() == b"hello"
            large = bytes(3 << 20)
            await socket.send(large)
            got = b""
            while len(got) < len(large):
                part = await socket.recv()
                assert isinstance(part, bytes)
                got += part
            assert got == large
            await socket.send(b"leave")
            with pytest.raises(ConnectionClosed):
                await socket.recv()
        with pytest.raises(InvalidStatus):
            await connect(at, origin="http://evil.example", open_timeout=SECONDS)  # type: ignore[arg-type]


@pytest.mark.usefixtures("echo")
async def test_a_slow_reader_holds_up_what_it_reads_only(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, client):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.config.http.port)
        writer.write(b"GET /large HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n")
        assert (await client.get("/healthz")).status_code == 200
        got = 0
        while part := await reader.read(1 << 20):
            got += len(part)
        assert got > 400 * (64 << 10)
        writer.close()


@pytest.mark.usefixtures("echo")
async def test_headers_and_bodies_have_limits(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, client):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.config.http.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
        for number in range(9):
            writer.write(b"x-%d: %s\r\n" % (number, b"y" * 8_000))
        assert (await reader.readline()).startswith(b"HTTP/1.1 431")
        writer.close()
        answered = await client.post("/take", content=bytes(17 << 20))
        assert answered.status_code == 413
        assert answered.json()["type"] == "urn:onelog:message-too-large"


async def test_what_is_no_http_is_closed_and_hurts_nobody(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, client):
        for garbage in (
            b"\x00\x00\x00\x10{}",
            b"GET\r\n\r\n",
            b"AMQP\x00\x00\x09\x01",
            b"\xff" * 99,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.config.http.port)
            writer.write(garbage)
            writer.write_eof()
            await reader.read()
            writer.close()
        assert (await client.get("/healthz")).status_code == 200


async def test_tls_on_the_same_port(tmp_path: Path) -> None:
    import httpx

    async with http(tmp_path) as (server, _):
        at = f"https://127.0.0.1:{server.config.http.port}"
        async with httpx.AsyncClient(verify=False, timeout=SECONDS) as client:
            assert (await client.get(f"{at}/healthz")).status_code == 200


def test_every_error_has_a_status_and_a_name() -> None:
    def below(kind: type[OnelogError]) -> list[type[OnelogError]]:
        return [kind, *(each for child in kind.__subclasses__() for each in below(child))]

    every = [each for each in below(OnelogError) if each.__module__ == "onelog.errors"]
    mapped = {each for each in every if status_of(each("x")) != 500}
    assert STATUSES.keys() <= mapped
    assert kind_of(OnelogError("x")) == "onelog"
