"""Doors: ways round a permission, from a page of another server, into a follower's port, and past a
lock."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from onelog.config import StoreConfig, Value
from onelog.core.access import SELF, Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.core.queues.policies import Policy
from onelog.core.users import logins
from onelog.core.users.keys import Keys
from onelog.core.users.passwords import prove, signature
from onelog.core.users.permissions import Rule
from onelog.errors import NotPermittedError, StoreLockedError
from onelog.message import NewMessage
from onelog.names import TABLES_TOPIC
from onelog.record.forms import amqp_fields
from onelog.replication import node
from onelog.server import BrokerServer
from onelog.store.folder import lock_holder
from onelog.store.message_store import MessageStore
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.replication import default_ha
from tests.gateways.grpc.live import address
from tests.gateways.http.live import SECONDS, url
from tests.gateways.kafka.raw import raw
from tests.gateways.remoting.live import broker, client
from tests.gateways.stomp.live import Bare
from tests.ports import free_port
from tests.security.secrets import ADMIN, PORTS, people
from tests.security.test_sweep_grpc import PATHS, about, called
from tests.security.test_sweep_http import filled, requests
from tests.security.test_sweep_kafka import log_in
from tests.security.test_sweep_queues import entered
from tests.security.test_sweep_remoting import ask
from tests.waiting import eventually

EVE = ("eve", "listens")
"""May do everything with queues, exchanges and vhosts, and nothing with topics."""
WHO = Principal(EVE[0], "amqp", "127.0.0.1:5000")
PAYROLL = b"everybody's salary"


def eve(server: BrokerServer, *more: Rule) -> None:
    """Make the user, with more permissions."""
    users = server.broker.users
    if EVE[0] not in users.users.known:
        users.create_user(SELF, EVE[0], prove(EVE[1], signing=True))
    rules = [Rule(("admin",), kind) for kind in ("queue", "exchange", "vhost", "group")]
    users.set_rules(SELF, EVE[0], (*rules, *more))


@asynccontextmanager
async def context(folder: Path, *more: Rule) -> AsyncIterator[BrokerServer]:
    """A broker with a topic that Eve may not read, and a message in it."""
    async with broker(folder, **PORTS) as server:
        people(server)
        eve(server, *more)
        core, stored = server.broker, asyncio.Event()
        core.topics.create(SELF, TopicConfig("payroll", 1, 1))
        core.publish.send(SELF, NewMessage("payroll", 0, PAYROLL), lambda *_: stored.set())
        await stored.wait()
        yield server


DENIED = Rule(("consume", "publish"), "topic", "payroll", "literal", "deny")


async def said(server: BrokerServer, talk: Callable[[BlockingChannel], Any]) -> Any:
    """What pika answers Eve; the error, if there is one."""

    def run() -> Any:
        connection = entered(server, EVE, "/")
        try:
            return talk(connection.channel())
        except pika.exceptions.AMQPError as error:
            return error
        finally:
            if connection.is_open:
                connection.close()

    return await asyncio.to_thread(run)


def is_refused(answer: Any) -> bool:
    return isinstance(answer, pika.exceptions.ChannelClosedByBroker) and answer.reply_code == 403


def sent(server: BrokerServer) -> int:
    """How many messages have come to the topic since it was made."""
    return server.broker.topics.max_offset(SELF, "payroll", 0) - 1


# -- a queue over a topic --------------------------------------------------------------------------


async def test_amqp_declares_no_queue_over_a_topic_that_may_not_be_read(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        answer = await said(server, lambda c: c.queue_declare("payroll", durable=True))
        assert is_refused(answer)


async def test_a_stream_over_a_topic_needs_the_topics_permission(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        stream = {"x-queue-type": "stream"}
        answer = await said(
            server, lambda c: c.queue_declare("payroll", durable=True, arguments=stream)
        )
        assert is_refused(answer)


@pytest.mark.parametrize("options", [{"exclusive": True}, {"auto_delete": True}])
async def test_no_queue_in_memory_takes_what_is_meant_for_a_topic(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    async with context(tmp_path) as server:
        assert is_refused(await said(server, lambda c: c.queue_declare("payroll", **options)))


async def test_a_queue_that_others_declared_over_a_topic_gives_nothing_of_it(
    tmp_path: Path,
) -> None:
    async with context(tmp_path) as server:
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
        ways: tuple[Callable[[BlockingChannel], Any], ...] = (
            lambda c: c.basic_get("payroll"),
            lambda c: c.basic_consume("payroll", print),
            lambda c: c.queue_declare("payroll", durable=True),
            lambda c: c.queue_declare("payroll", passive=True),
            lambda c: c.queue_purge("payroll"),
            lambda c: c.queue_delete("payroll"),
        )
        for way in ways:
            assert is_refused(await said(server, way))
        assert server.broker.topics.find(SELF, "payroll") is not None


async def test_after_a_restart_such_a_queue_is_still_the_topics(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
    async with broker(tmp_path, **PORTS) as server:
        assert is_refused(await said(server, lambda c: c.basic_get("payroll")))
        eve(server, Rule(("consume",), "topic", "payroll", "literal"))
        assert (await said(server, lambda c: c.basic_get("payroll")))[2] == PAYROLL


async def test_a_permission_that_is_taken_away_is_gone_from_the_queue_too(tmp_path: Path) -> None:
    async with context(tmp_path, Rule(("consume",), "topic", "payroll", "literal")) as server:
        await said(server, lambda c: c.queue_declare("payroll", durable=True))
        eve(server)
        assert is_refused(await said(server, lambda c: c.basic_get("payroll")))


async def test_stomp_reads_no_topic_as_a_queue(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        with Bare(("127.0.0.1", server.config.stomp.port)) as bare:

            def talk() -> Any:
                bare.connect("1.2", f"login:{EVE[0]}\npasscode:{EVE[1]}\n")
                bare.say(b"SUBSCRIBE\nid:1\ndestination:/queue/payroll\n\n\0")
                return bare.hear()

            frame = await asyncio.to_thread(talk)
        assert frame.command == "ERROR"
        assert PAYROLL not in frame.body


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/api/queues/%2f/payroll", {"durable": True}),
        ("POST", "/v1/queues", {"name": "payroll", "durable": True}),
        ("GET", "/api/message/payroll?readTimeout=100", None),
        (
            "POST",
            "/api/queues/%2f/payroll/get",
            {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"},
        ),
    ],
)
async def test_http_reads_no_topic_as_a_queue(
    tmp_path: Path, method: str, path: str, body: object
) -> None:
    async with (
        context(tmp_path) as server,
        httpx.AsyncClient(base_url=url(server), auth=EVE, timeout=SECONDS) as web,
    ):
        for has_queue in (False, True):
            if has_queue:
                server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
            answer = await web.request(method, path, json=body)
            assert answer.status_code in (401, 403, 404), (has_queue, answer.text)
            assert PAYROLL not in answer.content


async def test_what_is_denied_as_a_topic_is_denied_as_the_queue_of_that_name(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path, **PORTS) as server:
        people(server)
        eve(server, DENIED)
        # A queue of its own, under which there was no topic before.
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
        assert is_refused(await said(server, lambda c: c.basic_get("payroll")))
        assert is_refused(await said(server, lambda c: c.basic_consume("payroll", print)))


# -- into a topic ----------------------------------------------------------------------------------


def publishes(exchange: str, key: str, headers: dict[str, Any] | None = None) -> Any:
    def talk(channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        channel.basic_publish(
            exchange, key, b"forged", pika.BasicProperties(headers=headers), mandatory=False
        )

    return talk


async def test_the_default_exchange_leads_into_no_topics_queue(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
        assert is_refused(await said(server, publishes("", "payroll")))
        for name in ("CC", "BCC"):
            assert is_refused(await said(server, publishes("", "other", {name: ["payroll"]})))
        assert sent(server) == 0


async def test_what_may_not_be_sent_to_as_a_topic_may_not_as_a_queue(tmp_path: Path) -> None:
    async with broker(tmp_path, **PORTS) as server:
        people(server)
        eve(server, DENIED)
        queue = server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
        assert is_refused(await said(server, publishes("", "payroll")))
        assert is_refused(await said(server, publishes("", "x", {"CC": ["payroll"]})))
        assert not isinstance(await said(server, publishes("", "another")), Exception)
        assert queue.ready == 0


async def test_no_binding_leads_into_a_topics_queue(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
        assert is_refused(await said(server, lambda c: c.queue_bind("payroll", "amq.fanout", "")))
        with pytest.raises(NotPermittedError):
            server.broker.publish.routing.bind(WHO, "/", "amq.fanout", "topic", "payroll", "")


async def test_no_dead_letter_goes_into_a_topics_queue(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
        led = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "payroll"}
        answer = await said(server, lambda c: c.queue_declare("mine", arguments=led))
        assert is_refused(answer)


async def test_a_dead_letters_own_key_leads_into_no_topics_queue(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)

        def talk(channel: BlockingChannel) -> None:
            short = {"x-dead-letter-exchange": "", "x-message-ttl": 0}
            channel.queue_declare("mine", arguments=short)
            channel.queue_bind("mine", "amq.fanout")
            channel.confirm_delivery()
            channel.basic_publish("amq.fanout", "payroll", b"forged")

        assert not isinstance(await said(server, talk), Exception)
        await asyncio.sleep(0.2)
        assert sent(server) == 0


async def test_an_alternate_exchange_leads_into_no_topics_queue(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)

        def talk(channel: BlockingChannel) -> None:
            channel.exchange_declare("mine", arguments={"alternate-exchange": ""})
            channel.confirm_delivery()
            channel.basic_publish("mine", "payroll", b"forged")

        await said(server, talk)
        assert sent(server) == 0


async def test_dead_letters_need_a_permission_for_the_default_exchange_too(
    tmp_path: Path,
) -> None:
    async with context(tmp_path) as server:
        queues = Rule(("admin",), "queue", "mine", "prefix")
        server.broker.users.set_rules(SELF, EVE[0], (queues,))
        led = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
        with pytest.raises(NotPermittedError):
            server.broker.queues.declared.declare(WHO, "/", "mine", durable=True, arguments=led)


async def test_no_policy_takes_messages_of_a_topic_elsewhere(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
        definition = {"dead-letter-exchange": "amq.fanout", "message-ttl": 0}
        with pytest.raises(NotPermittedError):
            server.broker.queues.declared.policies.put(
                WHO, "policy", Policy("/", "p", "^pay", definition)
            )


async def test_no_policy_leads_dead_letters_into_a_topics_queue(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        server.broker.queues.declared.declare(SELF, "/", "payroll", durable=True)
        server.broker.queues.declared.declare(WHO, "/", "mine", durable=True)
        definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "payroll"}
        with pytest.raises(NotPermittedError):
            server.broker.queues.declared.policies.put(
                WHO, "policy", Policy("/", "p", "^mine", definition)
            )


# -- the followers' port ---------------------------------------------------------------------------

ALL = default_ha.encode_report(0)
"""What a follower says that has nothing yet."""


@asynccontextmanager
async def master(folder: Path, key: Path | None = None) -> AsyncIterator[BrokerServer]:
    """A master with a port for followers."""
    settings: dict[str, Value] = {"broker__port": free_port(), "replication__replicas": 2}
    if key is not None:
        settings["security__key_path"] = str(key)
    async with broker(folder, **settings) as server:
        server.broker.topics.create(SELF, TopicConfig("payroll", 1, 1))
        yield server


async def heard(server: BrokerServer, *said: bytes, seconds: float = 5) -> bytes:
    """What the followers' port answers first; empty if it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.config.broker.port + 1)
    try:
        for each in said:
            writer.write(each)
            await asyncio.sleep(0.01)
        async with asyncio.timeout(seconds):
            return await reader.read(1 << 16)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_nobody_on_this_machine_follows_without_the_key_once_there_are_users(
    tmp_path: Path,
) -> None:
    async with master(tmp_path) as server:
        assert TABLES_TOPIC.encode() in await heard(server, ALL)
        people(server)
        assert await heard(server, ALL) == b""


async def test_who_followed_before_there_were_users_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "LOOK_SECONDS", 0.05)
    async with master(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.config.broker.port + 1)
        writer.write(ALL)
        assert await reader.read(1 << 16)
        people(server)
        async with asyncio.timeout(5):
            while await reader.read(1 << 16):
                pass
        writer.close()


async def test_who_only_begins_a_proof_does_not_stay_at_the_followers_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "PROOF_SECONDS", 0.05)
    async with master(tmp_path) as server:
        people(server)
        assert await heard(server, node.PROVES) == b""


async def test_no_proof_but_that_of_the_key_opens_the_followers_port(tmp_path: Path) -> None:
    ours = Keys(tmp_path / "key")
    now_ms = time.time_ns() // 1_000_000
    async with master(tmp_path, ours.path) as server:
        people(server)
        right = ours.proof(now_ms)
        wrong = (
            Keys(tmp_path / "other").proof(now_ms),
            ours.proof(now_ms - 600_000),
            ours.proof(now_ms + 600_000),
            bytes(56),
            right[:-1] + bytes([right[-1] ^ 1]),
            right[:16] + bytes(8) + right[24:],
        )
        for proof in wrong:
            assert await heard(server, node.PROVES + proof + ALL) == b""
        assert await heard(server, node.PROVES + ALL * 7 + ALL) == b""
        said = node.PROVES + right + ALL
        assert TABLES_TOPIC.encode() in await heard(server, said)
        assert TABLES_TOPIC.encode() in await heard(
            server, *(said[at : at + 9] for at in range(0, len(said), 9))
        )


async def test_a_slave_with_the_key_follows_a_master_with_users(tmp_path: Path) -> None:
    key = tmp_path / "key"
    async with master(tmp_path, key) as server:
        people(server)
        place = f"127.0.0.1:{server.config.broker.port + 1}"
        settings: dict[str, Value] = {
            "broker__broker_id": 1,
            "replication__replicas": 2,
            "replication__master": place,
        }
        async with broker(tmp_path / "slave", **settings, security__key_path=str(key)) as slave:
            await eventually(
                lambda: slave.store.confirmed == server.store.log_end, "the slave has it all"
            )
            # And it knows what its users sign with, as it may become the master.
            assert slave.broker.users.logins.signing_secret(Principal(*ADMIN)) == ADMIN[1]


# -- pages of other servers ------------------------------------------------------------------------

SCRIPT = b"<script>fetch('/v1/users')</script>"
BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"}
ELSEWHERE: list[dict[str, str]] = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    BROWSER,
    {**BROWSER, "referer": "https://evil.example/page"},
    {**BROWSER, "referer": "https://evil.example/127.0.0.1"},
]


@asynccontextmanager
async def web(folder: Path) -> AsyncIterator[tuple[BrokerServer, httpx.AsyncClient]]:
    """A broker without users, as it comes, and its HTTP port."""
    async with (
        broker(folder, **PORTS) as server,
        httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as client,
    ):
        yield server, client


def is_harmless(answer: httpx.Response) -> bool:
    """Whether a browser runs nothing of an answer on the console's origin."""
    headers = answer.headers
    return (
        headers["content-disposition"] == "attachment"
        and headers["x-content-type-options"] == "nosniff"
        and "sandbox" in headers["content-security-policy"]
        and "script" not in headers["content-security-policy"]
    )


@pytest.mark.parametrize(
    "kind", ["text/html", "image/svg+xml", "text/xml", "application/xhtml+xml"]
)
async def test_a_message_that_is_a_page_is_not_shown_by_a_browser(
    tmp_path: Path, kind: str
) -> None:
    async with web(tmp_path) as (_, client):
        await client.post("/api/message/q", content=SCRIPT, headers={"content-type": kind})
        answer = await client.get("/api/message/q?readTimeout=1000")
        assert answer.content == SCRIPT
        assert is_harmless(answer)


async def test_a_message_that_is_consumed_raw_is_not_shown_by_a_browser(tmp_path: Path) -> None:
    async with web(tmp_path) as (server, client):
        server.broker.topics.create(SELF, TopicConfig("t", 1, 1))
        sent = {"onelog-header-content-type": "text/html", "content-type": "text/html"}
        await client.post("/v1/topics/t/produce", content=SCRIPT, headers=sent)
        answer = await client.post("/v1/topics/t/groups/g/consume?raw=true&wait_ms=2000")
        assert answer.content == SCRIPT
        assert is_harmless(answer)


async def test_every_answer_but_a_page_is_sandboxed(tmp_path: Path) -> None:
    async with web(tmp_path) as (_, client):
        for path in ("/v1/topics", "/v1/nothing", "/metrics", "/api/overview", "/healthz"):
            assert "sandbox" in (await client.get(path)).headers["content-security-policy"], path
        assert "sandbox" not in (await client.get("/")).headers["content-security-policy"]


async def test_no_message_writes_a_header_of_an_answer(tmp_path: Path) -> None:
    evil = "text/html\r\nset-cookie: evil=1\r\n\r\n<script>"
    name = "q\r\nset-cookie: evil=1"
    async with broker(tmp_path, **PORTS) as server:
        core = server.broker
        for queue in ("q", name):
            core.queues.declared.declare(SELF, "/", queue, durable=True)
            properties = amqp_fields.encode_properties({"content_type": evil})
            core.publish.routing.publish(SELF, "/", "", queue, properties, b"x", lambda *_: None)
        for path in ("q", "q%0d%0aset-cookie:%20evil=1"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.config.http.port)
            writer.write(
                f"GET /api/message/{path}?readTimeout=1000 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            answer = await asyncio.wait_for(reader.read(), SECONDS)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200" if path == "q" else b"HTTP/1.1 404")
            assert b"\r\nset-cookie" not in answer


@pytest.mark.parametrize("headers", ELSEWHERE)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_page_of_another_server_takes_no_message(
    tmp_path: Path, method: str, headers: dict[str, str]
) -> None:
    async with web(tmp_path) as (server, client):
        await client.post("/api/message/jobs", content=b"job")
        path = "/api/message/jobs?readTimeout=100"
        assert (await client.request(method, path, headers=headers)).status_code == 403
        path = "/api/message/made-by-a-page?readTimeout=100"
        assert (await client.request(method, path, headers=headers)).status_code == 403
        queues = {each.name: each.ready for each in server.broker.queues.declared.queues(SELF)}
        assert queues == {"jobs": 1}


async def test_programs_and_pages_of_the_broker_still_take_messages(tmp_path: Path) -> None:
    async with web(tmp_path) as (_, client):
        host = client.base_url.netloc.decode()
        for headers in (
            {},
            {**BROWSER, "sec-fetch-site": "none"},
            {**BROWSER, "sec-fetch-site": "same-origin"},
            {**BROWSER, "referer": f"http://{host}/"},
            {"origin": f"http://{host}"},
        ):
            await client.post("/api/message/jobs", content=b"job")
            answer = await client.get("/api/message/jobs?readTimeout=1000", headers=headers)
            assert answer.content == b"job", headers


@pytest.mark.parametrize("path", ["/mqtt", "/stomp", "/ws"])
async def test_a_page_of_another_server_opens_no_websocket(tmp_path: Path, path: str) -> None:
    async with broker(tmp_path, **PORTS) as server:
        for origin in ("https://evil.example", "null"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.config.http.port)
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.config.http.port}\r\n"
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: {origin}\r\n\r\n".encode()
            )
            answer = await asyncio.wait_for(reader.readline(), SECONDS)
            writer.close()
            assert answer.split()[1] == b"403"


async def test_no_get_changes_anything_for_a_page_of_another_server(tmp_path: Path) -> None:
    async with web(tmp_path) as (server, client):
        core = server.broker
        core.topics.create(SELF, TopicConfig("thing", 1, 1))
        core.queues.declared.declare(SELF, "/", "thing", durable=True)
        before = core.admin.log_end
        # What GETs of a page can ask: with nothing but their own headers.
        for method, path in requests(server):
            if method == "GET" and "follow" not in path:
                for name in ("thing", "not-there"):
                    headers = {**BROWSER, "sec-fetch-site": "cross-site"}
                    await client.get(filled(path, name, "%2F"), headers=headers)
        assert core.admin.log_end == before


# -- the lock of a store ---------------------------------------------------------------------------


def test_who_deletes_the_lock_file_lets_no_second_broker_in(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path, StoreConfig())
    (tmp_path / "lock").unlink()
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        MessageStore.open(tmp_path, StoreConfig())
    assert lock_holder(tmp_path) == os.getpid()
    store.close()
    assert lock_holder(tmp_path) is None
    MessageStore.open(tmp_path, StoreConfig()).close()


def test_another_file_in_the_place_of_the_lock_file_lets_nobody_in(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path, StoreConfig())
    (tmp_path / "new").write_bytes(b"lock")
    (tmp_path / "new").replace(tmp_path / "lock")
    opens = f"""
import sys
from pathlib import Path
from onelog.config import StoreConfig
from onelog.store.message_store import MessageStore
try:
    MessageStore.open(Path({str(tmp_path)!r}), StoreConfig())
except Exception as error:
    sys.exit(type(error).__name__)
"""
    ended = subprocess.run([sys.executable, "-c", opens], capture_output=True, text=True)
    assert ended.stderr.strip() == "StoreLockedError"
    store.close()


# -- guessing --------------------------------------------------------------------------------------


Guess = Callable[[int], Awaitable[object]]


async def looked_at(guess: Guess, count: int, seconds: float) -> int:
    """How many signatures are looked at, of those that come as fast as they can."""
    seen: list[str] = []

    def noted(secret: str, content: bytes, body: Any = b"") -> bytes:
        seen.append(secret)
        return signature(secret, content, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "signature", noted)
        asked = [asyncio.ensure_future(guess(number)) for number in range(count)]
        await eventually(lambda: bool(seen), "the first is looked at")
        await asyncio.sleep(seconds)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return len(seen)


async def test_one_connection_tries_few_signatures(tmp_path: Path) -> None:
    async with context(tmp_path) as server, client(server) as peer:

        async def guess(number: int) -> None:
            login = ADMIN[0], f"guess {number}"
            answer = await ask(peer, login, RequestCode.AUTH_LIST_USER, {}, b"")
            assert answer.code == ResponseCode.NO_PERMISSION

        assert 1 <= await looked_at(guess, 1_000, 0.5) <= 3
        # Who signs rightly elsewhere is not held up.
        async with client(server) as other:
            assert (await ask(other, ADMIN, RequestCode.AUTH_LIST_USER, {}, b"")).code == 0


async def test_one_connection_of_grpc_tries_few_signatures(tmp_path: Path) -> None:
    async with (
        context(tmp_path) as server,
        grpc.aio.insecure_channel(address(server)) as channel,
    ):
        path = next(each for each in PATHS if each.endswith("QueryRoute"))
        request = about(messages.methods()[path][0], "payroll", "g")

        async def guess(number: int) -> None:
            (answer,) = await called(channel, path, request, (ADMIN[0], f"guess {number}"))
            assert answer.status.code == Code.UNAUTHORIZED

        assert 1 <= await looked_at(guess, 200, 0.5) <= 3
        assert (await called(channel, path, request, (EVE[0], "x")))[0].status.code != Code.OK


async def test_wrong_signatures_are_answered_later_and_later(tmp_path: Path) -> None:
    async with context(tmp_path) as server, client(server) as peer:
        began = time.monotonic()
        for _ in range(3):
            answer = await ask(peer, (ADMIN[0], "guess"), RequestCode.AUTH_LIST_USER, {}, b"")
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "signature-failed" in (answer.remark or "")
        assert time.monotonic() - began >= 0.1 + 0.2 + 0.4


async def test_what_is_guessed_over_one_protocol_slows_all(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        core, counts = server.broker.users.logins, []

        def count() -> None:
            counts.append(core._failures[f"name {EVE[0]}"][0])

        async with client(server) as peer:
            await ask(peer, (EVE[0], "guess"), RequestCode.AUTH_LIST_USER, {}, b"")
            count()
        async with httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as http:
            assert (await http.get("/v1/session", auth=(EVE[0], "guess"))).status_code == 401
            count()
        credentials = pika.PlainCredentials(EVE[0], "guess")
        place = pika.ConnectionParameters("127.0.0.1", server.config.amqp.port, "/", credentials)
        with pytest.raises(pika.exceptions.AMQPError):
            await asyncio.to_thread(pika.BlockingConnection, place)
        count()
        with Bare(("127.0.0.1", server.config.stomp.port)) as bare:
            said = f"login:{EVE[0]}\npasscode:guess\n"
            await asyncio.to_thread(bare.say, f"CONNECT\naccept-version:1.2\n{said}\n\0".encode())
            assert (await asyncio.to_thread(bare.hear)).command == "ERROR"
        count()
        async with raw(server) as kafka:
            with pytest.raises((AssertionError, ConnectionError, asyncio.IncompleteReadError)):
                await log_in(kafka, (EVE[0], "guess"))
        count()
    assert counts == [1, 2, 3, 4, 5]
