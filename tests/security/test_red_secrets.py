"""Secrets: whoever may read every topic reads no table, and a stolen disk tells no password."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from onelog.core.access import SELF, Principal
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.fetch import Cursor, Limits
from onelog.core.users.keys import KEY_FILE, Keys
from onelog.core.users.passwords import prove
from onelog.core.users.permissions import Rule
from onelog.core.users.users import Role, User
from onelog.errors import ConfigError, NotPermittedError, OnelogError, SystemTopicError
from onelog.message import NewMessage
from onelog.message import message_id as offset_id
from onelog.names import (
    HALF_TOPIC,
    LIGHT_QUEUE_PREFIX,
    OP_HALF_TOPIC,
    TABLES_FILE,
    TABLES_TOPIC,
    TIMER_TOPIC,
)
from onelog.nameserver.kv import save_kv
from onelog.net.tls import write_self_signed
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.gateways.http.live import SECONDS, url
from tests.gateways.remoting.live import broker, client
from tests.security.secrets import ADMIN, PORTS, people
from tests.security.test_sweep_remoting import ask

READER = ("rita", "reads-everything")
"""May read every topic as any group, and nothing else."""
WHO = Principal(READER[0], "remoting", "127.0.0.1:5000")
INTERNAL = (TABLES_TOPIC, "onelog_sys_leases", HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC)


def reader(server: BrokerServer) -> None:
    """Make the user."""
    users = server.broker.users
    users.create_user(SELF, READER[0], prove(READER[1], signing=True))
    rules = [Rule(("consume", "create"), kind) for kind in ("topic", "group", "queue")]
    users.set_rules(SELF, READER[0], tuple(rules))


@contextlib.asynccontextmanager
async def context(folder: Path, **settings: str | int) -> AsyncIterator[BrokerServer]:
    """A broker with users, one of whom reads everything."""
    async with broker(folder, **{**PORTS, **settings}) as server:
        people(server)
        reader(server)
        yield server


def table_records(server: BrokerServer) -> list[int]:
    """Where the records of the table of users are in the log."""
    store = server.core.store
    found = [
        store.entry_at(TABLES_TOPIC, 0, offset)
        for offset in range(store.min_offset(TABLES_TOPIC, 0), store.max_offset(TABLES_TOPIC, 0))
    ]
    return [int(each[0]) for each in found if each is not None]


def message_id(server: BrokerServer, log_offset: int) -> str:
    """The offset message id of a record."""
    return offset_id(b"\x7f\0\0\1" + (10911).to_bytes(4, "big"), log_offset)


# -- system records are not messages ---------------------------------------------------------------


async def test_a_record_of_a_table_is_not_viewed_by_its_id(tmp_path: Path) -> None:
    async with context(tmp_path) as server, client(server) as peer:
        for at in table_records(server):
            ext = {"offset": str(at), "topic": TABLES_TOPIC}
            answer = await ask(peer, READER, RequestCode.VIEW_MESSAGE_BY_ID, ext, b"")
            assert answer.code == ResponseCode.NO_PERMISSION
            assert READER[1].encode() not in bytes(answer.body)


async def test_not_even_an_administrator_views_a_record_of_a_table(tmp_path: Path) -> None:
    async with context(tmp_path) as server, client(server) as peer:
        ext = {"offset": str(table_records(server)[-1]), "topic": TABLES_TOPIC}
        answer = await ask(peer, ADMIN, RequestCode.VIEW_MESSAGE_BY_ID, ext, b"")
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_without_users_a_record_of_a_table_is_not_viewed_either(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as peer:
        server.broker.topics.create(SELF, TopicConfig("t", 1, 1))
        at = table_records(server)[-1]
        answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=at, topic=TABLES_TOPIC)
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_sending_back_makes_no_message_of_a_record_of_a_table(tmp_path: Path) -> None:
    async with context(tmp_path) as server, client(server) as peer:
        server.broker.groups.put(SELF, GroupConfig("thieves"))
        for at in table_records(server):
            ext = {"group": "thieves", "offset": str(at), "delayLevel": "1", "originTopic": "t"}
            answer = await ask(peer, READER, RequestCode.CONSUMER_SEND_MSG_BACK, ext, b"")
            assert answer.code == ResponseCode.NO_PERMISSION
        assert server.broker.topics.max_offset(SELF, "%RETRY%thieves", 0) == 0


async def test_no_client_is_told_to_consume_a_record_of_a_table(tmp_path: Path) -> None:
    async with context(tmp_path) as server, client(server) as peer:
        ext = {
            "consumerGroup": "thieves",
            "clientId": "c",
            "brokerName": "b",
            "msgId": message_id(server, table_records(server)[-1]),
        }
        answer = await ask(peer, READER, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, b"")
        assert answer.code != ResponseCode.SUCCESS
        assert READER[1].encode() not in bytes(answer.body)


async def test_rest_shows_no_record_of_a_table(tmp_path: Path) -> None:
    async with (
        context(tmp_path) as server,
        httpx.AsyncClient(base_url=url(server), auth=READER, timeout=SECONDS) as web,
    ):
        for at in table_records(server):
            answer = await web.get(f"/v1/messages/{message_id(server, at)}")
            assert answer.status_code == 403
        for way in ("messages", "peek", "follow"):
            answer = await web.get(f"/v1/topics/{TABLES_TOPIC}/{way}")
            assert answer.status_code in (403, 404), way
        answer = await web.post(f"/v1/topics/{TABLES_TOPIC}/groups/thieves/consume", json={})
        assert answer.status_code in (403, 404)


@pytest.mark.parametrize("topic", INTERNAL)
async def test_an_internal_topic_is_not_pulled(tmp_path: Path, topic: str) -> None:
    async with context(tmp_path) as server, client(server) as peer:
        for code in (RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE):
            ext = {
                "consumerGroup": "thieves",
                "topic": topic,
                "queueId": "0",
                "queueOffset": "0",
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "subVersion": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "expressionType": "TAG",
                "invisibleTime": "60000",
                "pollTime": "0",
                "bornTime": "0",
                "initMode": "0",
                "exp": "*",
                "expType": "TAG",
                "order": "false",
            }
            answer = await ask(peer, READER, code, ext, b"")
            assert answer.code in (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST)


@pytest.mark.parametrize("topic", INTERNAL)
async def test_no_way_into_the_core_reads_an_internal_topic(tmp_path: Path, topic: str) -> None:
    async with context(tmp_path) as server:
        core, found = server.broker, asyncio.get_running_loop().create_future()
        with pytest.raises(OnelogError):
            core.cursors.fetch(
                WHO,
                [Cursor(None, topic, 0, 0)],
                Limits(1, 1_000, 1_000),
                0,
                lambda *answer: found.set_result(answer[1]),
            )
        for ask_for in (
            lambda: core.topics.find_by_key(WHO, topic, "k", 0, 1 << 50, 10),
            lambda: core.groups.pull_subscription(WHO, "thieves", topic),
            lambda: core.topics.mqtt_forwarding.add(WHO, topic, "k"),
            lambda: core.cursors.settled(WHO, topic, 0, 0, 1),
        ):
            with pytest.raises(OnelogError):
                ask_for()


@pytest.mark.parametrize("topic", INTERNAL)
async def test_a_queue_named_like_an_internal_topic_is_a_queue_of_its_own(
    tmp_path: Path, topic: str
) -> None:
    async with context(tmp_path) as server:
        queue = server.broker.queues.declared.declare(WHO, "/", topic, durable=True)
        assert queue.topic != topic
        assert queue.ready == 0


async def test_nobody_makes_a_topic_among_the_brokers_own(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        for name in ("onelog_sys_new", "onelog_sys_routed", TABLES_TOPIC):
            with pytest.raises(SystemTopicError):
                server.broker.topics.create(WHO, TopicConfig(name, 1, 1))


async def test_a_message_names_no_table_as_a_further_queue(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as peer:
        core = server.broker
        core.topics.create(SELF, TopicConfig("t", 1, 1))
        core.topics.create(SELF, TopicConfig("payroll", 1, 1))
        before = server.core.store.max_offset(TABLES_TOPIC, 0)
        names = f"{LIGHT_QUEUE_PREFIX}t,{TABLES_TOPIC},payroll,{HALF_TOPIC}"
        await peer.send("t", b"x", {"INNER_MULTI_DISPATCH": names})
        assert server.core.store.max_offset(TABLES_TOPIC, 0) == before
        assert server.core.store.max_offset("payroll", 0) == 0
        assert server.core.store.max_offset(HALF_TOPIC, 0) == 0


async def test_who_may_see_everything_still_sees_what_waits(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        core, login = server.broker, Principal(ADMIN[0], "remoting", "127.0.0.1:1")
        assert core.users.may(login, "consume", ("topic", TIMER_TOPIC))
        assert not core.users.may(login, "consume", ("topic", TABLES_TOPIC))
        with pytest.raises(NotPermittedError):
            core.users.check(WHO, "consume", ("topic", TIMER_TOPIC))


async def test_a_half_message_is_not_viewed_by_its_id(tmp_path: Path) -> None:
    async with context(tmp_path) as server, client(server) as peer:
        core, stored = server.broker, asyncio.Event()
        core.topics.create(SELF, TopicConfig("payroll", 1, 1))
        server.core.writer.put(
            NewMessage(HALF_TOPIC, 0, b"secret salary"), lambda *_: stored.set(), None
        )
        await stored.wait()
        at = server.core.store.entry_at(HALF_TOPIC, 0, 0)
        assert at is not None
        ext = {"offset": str(at[0]), "topic": HALF_TOPIC}
        answer = await ask(peer, READER, RequestCode.VIEW_MESSAGE_BY_ID, ext, b"")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert b"salary" not in bytes(answer.body)


# -- secrets on the disk ---------------------------------------------------------------------------


def bytes_of(folder: Path) -> bytes:
    """All that a thief of the disk reads, but for the key."""
    return b"".join(
        each.read_bytes() for each in folder.rglob("*") if each.is_file() and each.name != KEY_FILE
    )


async def test_no_file_of_a_store_has_a_password_in_it(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        users = server.broker.users
        users.change_user(SELF, READER[0], proofs=prove("another-password", signing=True))
        users.put_role(SELF, Role("temporary"))
        users.change_user(SELF, READER[0], roles=("temporary",))
        users.delete_role(SELF, "temporary")
        server.core.tables.snapshot(wait=True)
    found = await asyncio.to_thread(bytes_of, tmp_path)
    assert READER[0].encode() in found
    assert READER[1].encode() not in found
    assert b"another-password" not in found


async def test_a_signature_is_right_after_a_restart(tmp_path: Path) -> None:
    async with context(tmp_path):
        pass
    async with broker(tmp_path, **PORTS) as server, client(server) as peer:
        assert (await ask(peer, ADMIN, RequestCode.AUTH_LIST_USER, {}, b"")).code == 0
        wrong = await ask(peer, (ADMIN[0], "wrong"), RequestCode.AUTH_LIST_USER, {}, b"")
        assert wrong.code == ResponseCode.NO_PERMISSION


def clear(server: BrokerServer, name: str, password: str) -> None:
    """Make a user as versions did that stored secrets in clear."""
    user = User(name, prove(password, signing=True), ("admin",))
    server.core.tables.write([("users", name, msgspec.to_builtins(user))])


async def test_clear_secrets_of_an_earlier_version_are_encrypted_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(tmp_path, **PORTS) as server:
        clear(server, "old", "clear-password")
        core = server.broker
        server.core.tables.snapshot(wait=True)
        end = core.admin.log_end
    async with broker(tmp_path, **PORTS) as server, client(server) as peer:
        answer = await ask(peer, ("old", "clear-password"), RequestCode.AUTH_LIST_USER, {}, b"")
        assert answer.code == 0
        later = bytes(server.core.store.tail.read_raw(end, server.broker.admin.log_end - end))
    assert "secrets of 1 users are encrypted" in caplog.text
    assert b'"old"' in later
    assert b"clear-password" not in later
    assert b"clear-password" not in (tmp_path / "store" / "config" / TABLES_FILE).read_bytes()


async def test_with_a_newer_key_first_all_secrets_are_encrypted_with_that(tmp_path: Path) -> None:
    async with context(tmp_path):
        pass
    path = tmp_path / "store" / "config" / KEY_FILE
    old = path.read_text()
    path.write_text("ab" * 32 + "\n" + old)
    async with broker(tmp_path, **PORTS):
        pass
    path.write_text("ab" * 32 + "\n")
    async with broker(tmp_path, **PORTS) as server, client(server) as peer:
        assert (await ask(peer, ADMIN, RequestCode.AUTH_LIST_USER, {}, b"")).code == 0


async def test_without_the_key_nobody_signs_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with context(tmp_path):
        pass
    path = tmp_path / "store" / "config" / KEY_FILE
    kept = path.read_text()
    path.unlink()
    async with broker(tmp_path, **PORTS) as server, client(server) as peer:
        answer = await ask(peer, ADMIN, RequestCode.AUTH_LIST_USER, {}, b"")
        assert answer.code == ResponseCode.NO_PERMISSION
        empty = await ask(peer, (ADMIN[0], ""), RequestCode.AUTH_LIST_USER, {}, b"")
        assert empty.code == ResponseCode.NO_PERMISSION
        assert "encrypted with another key" in caplog.text
    path.write_text(kept)
    async with broker(tmp_path, **PORTS) as server, client(server) as peer:
        assert (await ask(peer, ADMIN, RequestCode.AUTH_LIST_USER, {}, b"")).code == 0


def test_a_sealed_secret_is_not_another_users(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "key")
    sealed = keys.seal("ann", "password")
    assert keys.open("ann", sealed) == "password"
    assert keys.open("bob", sealed) == ""
    assert keys.open("ann", sealed[:-8] + "AAAAAAA=") == ""
    assert keys.open("ann", "garbage") == ""
    assert Keys(tmp_path / "other").open("ann", sealed) == ""


@pytest.mark.parametrize("text", ["", "short", "zz" * 32, "ab" * 31])
def test_what_is_no_key_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(ConfigError, match="key is no key"):
        Keys(path).load()


async def test_the_salt_of_a_user_that_is_none_survives_a_restart(tmp_path: Path) -> None:
    salts: list[bytes] = []
    for _ in range(2):
        async with broker(tmp_path, **PORTS) as server:
            if not salts:
                people(server)
            first = server.broker.users.logins.scram("SCRAM-SHA-256", "kafka", "127.0.0.1:1")
            fields = first.first(b"n,,n=nobody-at-all,r=abc").split(b",")
            salts.append(fields[1])
            assert len(fields[1]) == len(b"s=") + 24
    assert salts[0] == salts[1]


# -- whose files these are -------------------------------------------------------------------------


def open_to_others(folder: Path) -> dict[str, str]:
    """What other users of the machine may do something with, and what."""
    found = {}
    for each in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(each.lstat().st_mode)
        if mode & 0o077:
            found[str(each.relative_to(folder))] = oct(mode)
    return found


@pytest.fixture
def open_umask() -> Iterator[None]:
    """As if nobody had thought of it."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_nothing_in_a_store_is_for_other_users(tmp_path: Path) -> None:
    async with context(tmp_path) as server, client(server) as peer:
        core = server.broker
        for number in range(3):
            core.topics.create(SELF, TopicConfig(f"t{number}", 2, 2))
        for number in range(20):
            ext = {"KEYS": f"k{number}", "TIMER_DELAY_MS": "60000"}
            await peer.send("t0", bytes(90_000), ext)
        server.core.timers.export_checkpoint()
        core.queues.declared.declare(SELF, "/", "q", durable=True)
        server.core.tables.snapshot(wait=True)
        await asyncio.sleep(0.1)
        assert await asyncio.to_thread(open_to_others, tmp_path / "store") == {}
    assert await asyncio.to_thread(open_to_others, tmp_path / "store") == {}


def crashed(store: Path) -> None:
    """Leave behind the log what a crash does."""
    segment = next((store / "commitlog").iterdir())
    end = len(segment.read_bytes().rstrip(b"\0"))
    with open(segment, "r+b") as file:
        file.seek(end + 16)
        file.write(b"what a crash has left")
    (store / "abort").touch()


@pytest.mark.usefixtures("open_umask")
async def test_what_is_cut_from_the_log_is_kept_for_nobody_else(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        server.broker.topics.create(SELF, TopicConfig("t", 1, 1))
    await asyncio.to_thread(crashed, tmp_path / "store")
    async with broker(tmp_path):
        pass
    assert list((tmp_path / "store" / "onelog-cut").iterdir())
    assert await asyncio.to_thread(open_to_others, tmp_path / "store") == {}


@pytest.mark.usefixtures("open_umask")
async def test_a_store_that_others_could_read_is_closed_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with context(tmp_path):
        pass
    store = tmp_path / "store"
    for each in (store, *store.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o664)
    outside = tmp_path / "outside"
    outside.touch()
    (store / "config" / "link").symlink_to(outside)
    async with broker(tmp_path, **PORTS):
        left = await asyncio.to_thread(open_to_others, store)
    assert left in ({}, {"config/link": "0o777"})
    assert stat.S_IMODE(outside.stat().st_mode) == 0o666
    assert "other users of this machine could read or write" in caplog.text
    caplog.clear()
    async with broker(tmp_path, **PORTS):
        pass
    assert "other users" not in caplog.text


@pytest.mark.usefixtures("open_umask")
async def test_a_key_and_a_certificate_are_made_for_nobody_else(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    Keys(folder / "deep" / "key").load()
    write_self_signed(folder)
    save_kv(folder / "names" / "kv.json", b"{}")
    assert open_to_others(folder) == {}
