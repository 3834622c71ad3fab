"""HTTP: no route of any of its APIs does anything for a page of another server, however it asks."""

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute

from onelog.core.access import SELF
from onelog.gateways.http.app import make_app
from onelog.server import BrokerServer
from tests.gateways.http.live import SECONDS, url
from tests.gateways.remoting.live import broker
from tests.security.secrets import ADMIN, PORTS, SECRET, context, state
from tests.security.test_red_doors import BROWSER, ELSEWHERE
from tests.security.test_sweep_http import body_about, filled

PAGES: list[dict[str, str]] = [each for each in ELSEWHERE if each != BROWSER]
"""What browsers say of themselves; an old one that says nothing at all cannot be told."""
FORMS = ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data", None)
"""What a page can send without asking, with the body that a program would send."""
OVERRIDES = ("x-http-method-override", "x-http-method", "x-method-override")


def changing(server: BrokerServer) -> list[tuple[str, str]]:
    """Every route that changes something, also those of the console."""
    found = [
        (method, route.path)
        for route in make_app(server.context).routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"GET", "HEAD", "OPTIONS"})
    ]
    assert len(found) > 70
    return found


@pytest.mark.parametrize("login", ["open", "session", "password"])
async def test_no_route_does_anything_for_a_page_of_another_server(
    tmp_path: Path, login: str
) -> None:
    async with (
        context(tmp_path) if login != "open" else broker(tmp_path, **PORTS) as server,
        httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as client,
    ):
        if login == "session":
            form = {"user": ADMIN[0], "password": ADMIN[1]}
            answer = await client.post("/login", data=form)
            assert answer.status_code < 400
            assert client.cookies
        elif login == "password":  # A browser remembers it, and says it again.
            client.auth = httpx.BasicAuth(*ADMIN)
        before = state(server) if login != "open" else None
        end = server.broker.admin.log_end
        let_in = []
        for number, (method, path) in enumerate(changing(server)):
            asked = filled(path, SECRET, "%2F")
            for turn, headers in enumerate(PAGES):
                kind = FORMS[(number + turn) % len(FORMS)]
                sent = {**headers, "content-type": kind} if kind else headers
                body = httpx.Request("POST", "/", json=body_about(method, path, SECRET)).content
                answer = await client.request(method, asked, headers=sent, content=body)
                if answer.status_code != 403:
                    let_in.append((method, path, headers, answer.status_code))
            for name in OVERRIDES:
                sent = {**PAGES[0], name: method, "content-type": "text/plain"}
                await client.get(asked, headers=sent)
                answer = await client.post(asked, headers=sent, content=b"{}")
                assert answer.status_code in (403, 404, 405)
        assert not let_in
        if before is None:
            assert server.broker.admin.log_end == end
        else:
            assert state(server) == before


async def test_no_websocket_opens_for_a_page_of_another_server(tmp_path: Path) -> None:
    async with broker(tmp_path, **PORTS) as server:
        paths = [
            route.path
            for route in make_app(server.context).routes
            if isinstance(route, WebSocketRoute)
        ]
        assert len(paths) >= 3
        for path in paths:
            for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.config.http.port)
                writer.write(
                    f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.config.http.port}\r\n"
                    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                    f"Origin: {origin}\r\n\r\n".encode()
                )
                answer = await asyncio.wait_for(reader.readline(), SECONDS)
                writer.close()
                assert answer.split()[1] == b"403", (path, origin)


async def test_who_is_no_page_of_another_server_may_do_it(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, **PORTS) as server,
        httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as client,
    ):
        host = client.base_url.netloc.decode()
        told: list[dict[str, str]] = [
            {},
            {"user-agent": "Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) PowerShell/7.4"},
            {**BROWSER, "referer": f"http://{host}/topics"},
            {**BROWSER, "origin": f"http://{host}"},
            {**BROWSER, "sec-fetch-site": "same-origin", "referer": f"http://{host}/"},
        ]
        for number, headers in enumerate(told):
            body = {"name": f"t{number}"}
            answer = await client.post("/v1/topics", json=body, headers=headers)
            assert answer.status_code < 300, headers
            assert server.broker.topics.find(SELF, f"t{number}") is not None
