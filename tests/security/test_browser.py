"""A real browser: logging in, what others try with its session, and hostile texts everywhere."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.passwords import prove
from onelog.core.users.users import Role
from onelog.errors import OnelogError
from onelog.message import NewMessage, encode_properties
from onelog.server import BrokerServer
from tests.console.browser import MS, Watched, browser, needs_chromium
from tests.console.live import cluster
from tests.gateways.http.live import url
from tests.gateways.remoting.live import client as remoting

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>"
SAFE = HOSTILE.replace("/", "-")
PLACES = (
    "overview",
    "topics",
    "groups",
    "queues",
    "exchanges",
    "connections",
    "delays",
    "dead-letters",
    "cluster",
    "settings",
    "messages?topic=shop",
    "topics/shop",
    "users",
    "trace",
)
ATTACKER = """<!doctype html><title>evil</title><body><script>
const at = "@BROKER@";
const tried = [];
for (const [method, type] of [["POST", "text/plain"], ["POST", "application/json"],
                              ["DELETE", null], ["PATCH", "application/json"]]) {
  for (const mode of ["no-cors", "cors"]) {
    const body = method === "DELETE" ? undefined : '{"name": "csrf", "http.origins": "*"}';
    const path = {POST: "/v1/topics", DELETE: "/v1/topics/shop", PATCH: "/v1/config"}[method];
    tried.push(fetch(at + path, {method, mode, credentials: "include", body,
      headers: type ? {"content-type": type} : {}}).then((a) => a.type).catch((e) => "refused"));
  }
}
tried.push(fetch(at + "/v1/topics", {credentials: "include"}).then((a) => a.text())
  .catch((e) => "refused"));
const socket = new WebSocket(at.replace("http", "ws") + "/mqtt", "mqtt");
tried.push(new Promise((done) => {
  socket.onopen = () => done("open"); socket.onerror = () => done("refused"); }));
Promise.all(tried).then((answers) => { document.title = JSON.stringify(answers); });
</script></body>"""


@contextlib.asynccontextmanager
async def attacker(page: str) -> AsyncIterator[str]:
    """A server of somebody else, with one page."""
    answer = page.encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: "

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + str(len(answer)).encode() + b"\r\n\r\n" + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        # By another name: another port of the same host would be another origin, but one site.
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/"


def people(server: BrokerServer) -> None:
    users = server.broker.users
    users.create_user(SELF, "ann", prove("secret"), ("admin",))
    server.broker.topics.create(SELF, TopicConfig("shop", 1, 1))


async def log_in(page: Any, base: str) -> None:
    """As a person does."""
    await page.goto(base)
    await page.fill("input[name=user]", "ann")
    await page.fill("input[name=password]", "secret")
    await page.click("button")
    await page.wait_for_selector("html[data-ready]", timeout=MS)


@needs_chromium
async def test_a_person_logs_in_and_other_pages_cannot_use_that(tmp_path: Path) -> None:
    async with cluster(tmp_path, mqtt__port=-1) as (server, _, _), browser() as chromium:
        people(server)
        base = url(server)
        context = await chromium.new_context()
        page = await context.new_page()
        page.set_default_timeout(MS)
        shown = await page.goto(base)
        assert shown is not None
        assert shown.status == 401
        await page.fill("input[name=user]", "ann")
        await page.fill("input[name=password]", "wrong")
        await page.click("button")
        assert "wrong user or password" in await page.inner_text("[role=alert]")
        before = await context.cookies()
        await log_in(page, base)
        (cookie,) = await context.cookies()
        assert before == []
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert await page.evaluate("document.cookie") == ""
        login = await page.evaluate("fetch('/v1/session').then((a) => a.json())")
        assert login == {"user": "ann"}
        async with attacker(ATTACKER.replace("@BROKER@", base)) as evil:
            other = await context.new_page()
            await other.goto(evil)
            await other.wait_for_function("document.title.startsWith('[')", timeout=MS)
            answers = await other.title()
        assert "shop" not in answers
        assert '"open"' not in answers
        assert server.broker.topics.find(SELF, "csrf") is None
        assert server.broker.topics.find(SELF, "shop") is not None
        assert server.config.http.origins == ""
        await page.evaluate("fetch('/logout', {method: 'POST', redirect: 'manual'})")
        again = await page.goto(base)
        assert again is not None
        assert again.status == 401


def hostile_things(server: BrokerServer) -> None:
    """Hostile texts wherever one can be written."""
    broker = server.broker
    makers: list[Callable[[str], object]] = [
        lambda name: broker.topics.create(SELF, TopicConfig(name, 1, 1)),
        lambda name: broker.groups.put(SELF, GroupConfig(name)),
        lambda name: broker.publish.routing.declare_exchange(SELF, "/", name, "topic"),
        lambda name: broker.queues.declared.declare(SELF, "/", name, durable=False),
        lambda name: broker.publish.routing.declare_vhost(SELF, name, HOSTILE, [HOSTILE]),
        lambda name: broker.users.create_user(SELF, name, prove("x")),
        lambda name: broker.users.put_role(SELF, Role(name)),
    ]
    for make in makers:
        for name in (HOSTILE, SAFE):
            with contextlib.suppress(OnelogError):
                make(name)
    text = encode_properties(
        {"KEYS": HOSTILE, "TAGS": HOSTILE, "UNIQ_KEY": SAFE, HOSTILE: HOSTILE, "__proto__": HOSTILE}
    )
    for topic in ("shop", SAFE):
        message = NewMessage(topic, 0, HOSTILE.encode(), text)
        broker.publish.send(SELF, message, lambda *_: None)


@needs_chromium
async def test_what_anybody_wrote_anywhere_is_text(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, _, _), browser() as chromium:
        async with remoting(server) as peer:
            await peer.heartbeat(HOSTILE, SAFE, "shop", HOSTILE)
            people(server)
            hostile_things(server)
            context = await chromium.new_context()
            watched = Watched(await context.new_page(), url(server))
            await log_in(watched.page, url(server))
            watched.complaints.clear()
            shown = ""
            async with httpx.AsyncClient(base_url=url(server), auth=("ann", "secret")) as web:
                ids = (await web.get("/v1/topics/shop/messages")).json()
            assert "onerror=alert(1)" in str(ids)
            for place in PLACES:
                await watched.page.goto(f"{url(server)}/#/{place}")
                await watched.page.wait_for_selector("html[data-ready]")
                await watched.page.wait_for_load_state("networkidle")
                shown += await watched.page.inner_text("body")
                assert await watched.page.query_selector("main img[src=x]") is None, place
            assert [each for each in watched.complaints if "dialog" in each] == []
            assert "onerror=alert(1)" in shown
