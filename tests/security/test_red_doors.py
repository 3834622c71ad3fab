"""Doors: ways round a permission, from a page of another server, into a follower's port, and past a
lock."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from onelog.config import Value
from onelog.core.access import SELF, Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.keys import Keys
from onelog.core.users.passwords import prove
from onelog.core.users.permissions import Rule
from onelog.core.workqueues.policies import Policy
from onelog.errors import NotPermittedError
from onelog.message import NewMessage
from onelog.names import TABLES_TOPIC
from onelog.replication import node
from onelog.server import BrokerServer
from onelog.wire.replication import default_ha
from tests.client.watching import eventually
from tests.gateways.http.live import SECONDS, url
from tests.gateways.remoting.live import broker
from tests.gateways.stomp.live import Bare
from tests.ports import free_port
from tests.security.secrets import ADMIN, PORTS, people
from tests.security.test_sweep_queues import entered

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
async def house(folder: Path, *more: Rule) -> AsyncIterator[BrokerServer]:
    """A broker with a topic that Eve may not read, and a message in it."""
    async with broker(folder, **PORTS) as server:
        people(server)
        eve(server, *more)
        core, stored = server.broker, asyncio.Event()
        core.admin.create_topic(SELF, TopicConfig("payroll", 1, 1))
        core.publish(SELF, NewMessage("payroll", 0, PAYROLL), lambda *_: stored.set())
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
    return server.broker.max_offset(SELF, "payroll", 0) - 1


# -- a queue over a topic --------------------------------------------------------------------------


async def test_amqp_declares_no_queue_over_a_topic_that_may_not_be_read(tmp_path: Path) -> None:
    async with house(tmp_path) as server:
        answer = await said(server, lambda c: c.queue_declare("payroll", durable=True))
        assert is_refused(answer)


async def test_a_stream_over_a_topic_needs_the_topics_permission(tmp_path: Path) -> None:
    async with house(tmp_path) as server:
        stream = {"x-queue-type": "stream"}
        answer = await said(
            server, lambda c: c.queue_declare("payroll", durable=True, arguments=stream)
        )
        assert is_refused(answer)


@pytest.mark.parametrize("options", [{"exclusive": True}, {"auto_delete": True}])
async def test_no_queue_in_memory_takes_what_is_meant_for_a_topic(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    async with house(tmp_path) as server:
        assert is_refused(await said(server, lambda c: c.queue_declare("payroll", **options)))


async def test_a_queue_that_others_declared_over_a_topic_gives_nothing_of_it(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as server:
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
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
        assert server.broker.find_topic(SELF, "payroll") is not None


async def test_after_a_restart_such_a_queue_is_still_the_topics(tmp_path: Path) -> None:
    async with house(tmp_path) as server:
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
    async with broker(tmp_path, **PORTS) as server:
        assert is_refused(await said(server, lambda c: c.basic_get("payroll")))
        eve(server, Rule(("consume",), "topic", "payroll", "literal"))
        assert (await said(server, lambda c: c.basic_get("payroll")))[2] == PAYROLL


async def test_a_permission_that_is_taken_away_is_gone_from_the_queue_too(tmp_path: Path) -> None:
    async with house(tmp_path, Rule(("consume",), "topic", "payroll", "literal")) as server:
        await said(server, lambda c: c.queue_declare("payroll", durable=True))
        eve(server)
        assert is_refused(await said(server, lambda c: c.basic_get("payroll")))


async def test_stomp_reads_no_topic_as_a_queue(tmp_path: Path) -> None:
    async with house(tmp_path) as server:
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
        ("POST", "/api/queues/%2f/payroll/get",
         {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
    ],
)  # fmt: skip
async def test_http_reads_no_topic_as_a_queue(
    tmp_path: Path, method: str, path: str, body: object
) -> None:
    async with (
        house(tmp_path) as server,
        httpx.AsyncClient(base_url=url(server), auth=EVE, timeout=SECONDS) as web,
    ):
        for has_queue in (False, True):
            if has_queue:
                server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
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
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
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
    async with house(tmp_path) as server:
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
        assert is_refused(await said(server, publishes("", "payroll")))
        for name in ("CC", "BCC"):
            assert is_refused(await said(server, publishes("", "other", {name: ["payroll"]})))
        assert sent(server) == 0


async def test_what_may_not_be_sent_to_as_a_topic_may_not_as_a_queue(tmp_path: Path) -> None:
    async with broker(tmp_path, **PORTS) as server:
        people(server)
        eve(server, DENIED)
        queue = server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
        assert is_refused(await said(server, publishes("", "payroll")))
        assert is_refused(await said(server, publishes("", "x", {"CC": ["payroll"]})))
        assert not isinstance(await said(server, publishes("", "another")), Exception)
        assert queue.ready == 0


async def test_no_binding_leads_into_a_topics_queue(tmp_path: Path) -> None:
    async with house(tmp_path) as server:
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
        assert is_refused(await said(server, lambda c: c.queue_bind("payroll", "amq.fanout", "")))
        with pytest.raises(NotPermittedError):
            server.broker.routing.bind(WHO, "/", "amq.fanout", "topic", "payroll", "")


async def test_no_dead_letter_goes_into_a_topics_queue(tmp_path: Path) -> None:
    async with house(tmp_path) as server:
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
        led = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "payroll"}
        answer = await said(server, lambda c: c.queue_declare("mine", arguments=led))
        assert is_refused(answer)


async def test_a_dead_letters_own_key_leads_into_no_topics_queue(tmp_path: Path) -> None:
    async with house(tmp_path) as server:
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)

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
    async with house(tmp_path) as server:
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)

        def talk(channel: BlockingChannel) -> None:
            channel.exchange_declare("mine", arguments={"alternate-exchange": ""})
            channel.confirm_delivery()
            channel.basic_publish("mine", "payroll", b"forged")

        await said(server, talk)
        assert sent(server) == 0


async def test_dead_letters_need_a_permission_for_the_default_exchange_too(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as server:
        queues = Rule(("admin",), "queue", "mine", "prefix")
        server.broker.users.set_rules(SELF, EVE[0], (queues,))
        led = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
        with pytest.raises(NotPermittedError):
            server.broker.workqueues.declare(WHO, "/", "mine", durable=True, arguments=led)


async def test_no_policy_takes_messages_of_a_topic_elsewhere(tmp_path: Path) -> None:
    async with house(tmp_path) as server:
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
        definition = {"dead-letter-exchange": "amq.fanout", "message-ttl": 0}
        with pytest.raises(NotPermittedError):
            server.broker.workqueues.policies.put(
                WHO, "policy", Policy("/", "p", "^pay", definition)
            )


async def test_no_policy_leads_dead_letters_into_a_topics_queue(tmp_path: Path) -> None:
    async with house(tmp_path) as server:
        server.broker.workqueues.declare(SELF, "/", "payroll", durable=True)
        server.broker.workqueues.declare(WHO, "/", "mine", durable=True)
        definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "payroll"}
        with pytest.raises(NotPermittedError):
            server.broker.workqueues.policies.put(
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
        server.broker.admin.create_topic(SELF, TopicConfig("payroll", 1, 1))
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
            ours.proof(now_ms - 600_000), ours.proof(now_ms + 600_000),
            bytes(56), right[:-1] + bytes([right[-1] ^ 1]), right[:16] + bytes(8) + right[24:],
        )  # fmt: skip
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
            "broker__broker_id": 1, "replication__replicas": 2, "replication__master": place,
        }  # fmt: skip
        async with broker(tmp_path / "slave", **settings, security__key_path=str(key)) as slave:
            await eventually(
                lambda: slave.store.confirmed == server.store.log_end, "the slave has it all"
            )
            # And it knows what its users sign with, as it may become the master.
            assert slave.broker.logins.signing_secret(Principal(*ADMIN)) == ADMIN[1]
