"""Codes of errors; who may administer; what is too long is refused; who waits for the disk."""

import ast
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from unittest import mock

import pytest

import onelog
from onelog import errors, gateways
from onelog.clock import SystemClock
from onelog.core.access import SELF
from onelog.errors import OnelogError, PeerClosedError, StoreClosedError
from onelog.gateways.remoting.gateway import HANDLERS
from onelog.gateways.remoting.sending import reply
from onelog.gateways.remoting.session import (
    ERROR_CODES,
    BrokerSession,
    response_code,
)
from onelog.net.connection import Connection
from onelog.net.listener import Listener
from onelog.net.peer import Peer
from onelog.server import BrokerServer
from onelog.store.message_store import MessageStore
from onelog.wire.remoting.administration import KINDS, RequestKind
from onelog.wire.remoting.clients import (
    ConsumerData,
    HeartbeatData,
    LockRequest,
    ProducerData,
    RequestMode,
    SubscriptionData,
)
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.gateways.remoting.live import Client, bodies, broker, client, remoting
from tests.gateways.remoting.popping import GROUP, TOPIC, Popper, popping
from tests.gateways.remoting.samples import SAMPLES

SOURCE = Path(onelog.__file__).parent
REACHED = ("core", "store", "gateways/remoting", "wire/remoting", "net/remoting.py", "message.py")
"""What runs while a request is handled."""
COMMIT = 4 | 1
LONG = "n" * 500_000
HUGE = "n" * 5_000_000


def errors_named_in(path: Path) -> set[str]:
    """The errors that a module imports, to raise or to handle them."""
    return {
        alias.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "onelog.errors"
        for alias in node.names
    }


def modules() -> list[Path]:
    found = []
    for place in REACHED:
        path = SOURCE / place
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


REACHABLE = sorted(
    set[str]().union(*map(errors_named_in, modules())) - {"OnelogError", "ListenError"}
)


def test_the_errors_are_found_at_all() -> None:
    assert {"TopicNotFoundError", "StoreFullError", "WireError", "PeerTimeoutError"} <= set(
        REACHABLE
    )


@pytest.mark.parametrize("name", REACHABLE)
def test_every_error_that_a_request_can_end_in_has_a_code(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, OnelogError)
    assert set(kind.__mro__[: kind.__mro__.index(OnelogError)]) & set(ERROR_CODES)
    assert response_code(kind("reason")) != ResponseCode.SUCCESS


def test_an_error_without_a_code_has_that_of_its_nearest_parent() -> None:
    class OneOfTheirsError(StoreClosedError):
        pass

    assert response_code(OneOfTheirsError("")) == ERROR_CODES[errors.StoreError]
    assert response_code(OnelogError("")) == ResponseCode.SYSTEM_ERROR


# -- peers on other machines ---------------------------------------------------------------------


@contextlib.asynccontextmanager
async def far_peer(server: BrokerServer, host: str = "10.1.2.3") -> AsyncIterator[Peer]:
    """A peer that the broker takes for one on another machine."""

    def make_session(connection: Connection) -> BrokerSession:
        connection.remote = (host, connection.remote[1])
        return BrokerSession(connection, remoting(server))

    listener = await Listener.open("127.0.0.1", 0, make_session, clock=SystemClock())
    peer = await Peer.connect(*listener.address)
    try:
        yield peer
    finally:
        await peer.close()
        await listener.close()


ADMINISTRATION = [code for code in HANDLERS if KINDS[code] is RequestKind.ADMINISTRATION]
TOPIC_FIELDS = {
    "topic": "orders",
    "defaultTopic": "TBW102",
    "readQueueNums": "2",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


async def test_what_administers_is_refused_from_other_machines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(ADMINISTRATION) > 15
    async with broker(tmp_path) as server, far_peer(server) as far, client(server) as near:
        for code in map(RequestCode, ADMINISTRATION):
            refused = await far.ask(code, TOPIC_FIELDS)
            assert refused.code == ResponseCode.NO_PERMISSION, code
            assert "set security.remote_admin=true" in str(refused.remark)
            assert "10.1.2.3 is another one" in str(refused.remark)
            assert (await near.ask(code)).code != ResponseCode.NO_PERMISSION, code
    assert caplog.text.count("is another one") == 1


async def test_clients_on_other_machines_work_as_ever(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, far_peer(server) as peer:
        far = Client(peer, [])
        assert (await far.send("orders", b"x")).code == 0  # Creates the topic.
        assert bodies(await far.pull("orders", 0)) == [b"x"]
        assert (await far.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="orders")).code == 0
        assert (await far.ask(RequestCode.GET_BROKER_CONFIG)).code == 0


async def test_other_machines_administer_if_they_are_allowed_to(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, security__remote_admin=True) as server,
        far_peer(server) as far,
    ):
        assert (await far.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC_FIELDS)).code == 0
        changed = await far.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"broker.trace=false")
        assert changed.code == 0


async def test_the_machine_itself_decides_about_the_others_while_the_broker_runs(
    tmp_path: Path,
) -> None:
    code = RequestCode.UPDATE_BROKER_CONFIG
    async with broker(tmp_path) as server, far_peer(server) as far, client(server) as near:

        async def is_allowed() -> bool:
            return (await far.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC_FIELDS)).code == 0

        assert not await is_allowed()
        assert (await near.ask(code, b"security.remote_admin=true")).code == 0
        assert await is_allowed()
        refused = await far.ask(code, {}, b"security.remote_admin=true")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "on the broker's own machine only" in str(refused.remark)
        assert (await near.ask(code, b"security.remote_admin=false")).code == 0
        assert not await is_allowed()


# -- texts that are too long -----------------------------------------------------------------------


async def test_a_pop_with_a_long_attempt_id_is_refused_and_the_next_one_answered(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path) as (_, member):
        await member.send(b"0")
        refused = await member.ask_pop(attemptId=LONG, order="true")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == (
            "the custom field <attemptId> has 500000 characters; the limit is 1024"
        )
        leased = await member.pop()
        assert (await member.ack(leased[0])).code == ResponseCode.SUCCESS


async def test_who_sends_a_huge_attempt_id_is_sent_away_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path) as (server, member), client(server) as hostile:
        await member.send(b"0")
        with pytest.raises(PeerClosedError):
            await Popper(hostile).ask_pop(attemptId=HUGE, order="true")
        leased = await member.pop()
        assert (await member.ack(leased[0])).code == ResponseCode.SUCCESS


async def test_a_pull_with_a_long_group_name_commits_nothing(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send(TOPIC, b"0")
        refused = await both.pull(TOPIC, 0, consumerGroup=LONG, sysFlag=COMMIT, commitOffset=1)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        _commits_go_on(server)


@pytest.mark.parametrize(
    "changed",
    [
        {"queueId": 4},
        {"queueId": -1},
        {"topic": "nowhere"},
        {"consumerGroup": "n" * 121},
        {"consumerGroup": "no@group"},
        {"consumerGroup": ""},
    ],
)
async def test_a_pull_that_is_refused_commits_nothing(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send(TOPIC, b"0")
        asked = {"sysFlag": COMMIT, "commitOffset": 1, "topic": TOPIC, **changed}
        refused = await both.pull(str(asked.pop("topic")), 0, **asked)
        assert refused.code != ResponseCode.SUCCESS
        assert server.core.offsets.all() == {}
        _commits_go_on(server)


def _commits_go_on(server: BrokerServer) -> None:
    broker = server.broker
    assert server.core.offsets.all() == {}
    server.core.groups.require(GROUP)
    broker.cursors.commit(SELF, GROUP, TOPIC, 0, 1)
    server.core.offsets.flush()
    broker.cursors.reset(SELF, GROUP, TOPIC, -1)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.HEART_BEAT, HeartbeatData(client_id=HUGE)),
        (
            RequestCode.HEART_BEAT,
            HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name=HUGE)]),
        ),
        (
            RequestCode.HEART_BEAT,
            HeartbeatData(
                client_id="c",
                consumer_data_set=[
                    ConsumerData(
                        group_name=GROUP, subscription_data_set=[SubscriptionData(topic=HUGE)]
                    )
                ],
            ),
        ),
        (RequestCode.LOCK_BATCH_MQ, LockRequest(client_id="c", consumer_group=HUGE)),
        (RequestCode.SET_MESSAGE_REQUEST_MODE, RequestMode(consumer_group=HUGE, topic=TOPIC)),
    ],
)
async def test_huge_names_in_bodies_are_refused(
    tmp_path: Path, code: RequestCode, body: HeartbeatData | LockRequest | RequestMode
) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send(TOPIC, b"0")
        refused = await both.ask(code, body.encode())
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark is not None
        assert "length" in refused.remark or "characters" in refused.remark
        assert server.core.members.producer_groups() == []
        assert server.core.members.live_groups() == []


async def test_offsets_are_cloned_to_groups_that_can_exist_only(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send(TOPIC, b"0")
        _commits_go_on(server)
        refused = await both.ask(
            RequestCode.CLONE_GROUP_OFFSET, srcGroup=GROUP, destGroup="n" * 300, topic=TOPIC
        )
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert server.core.offsets.groups_of(TOPIC) == [GROUP]


# -- the disk is waited for elsewhere --------------------------------------------------------------


class Readings:
    """Who reads what of the store that may be on disk only, and in which thread."""

    NAMES = ("message_at", "find_by_key", "store_time", "offset_by_time")

    def __init__(self, store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, tuple[object, ...], int]] = []
        for name in self.NAMES:
            monkeypatch.setattr(store, name, self._watched(name, getattr(store, name)))

    def _watched(self, name: str, read: Callable[..., object]) -> Callable[..., object]:
        def watched(*args: object) -> object:
            self.seen.append((name, args, threading.get_ident()))
            return read(*args)

        return watched

    def unprepared(self) -> list[tuple[str, tuple[object, ...]]]:
        """What this thread has read, and no worker before it."""
        mine = threading.get_ident()
        known: set[tuple[str, tuple[object, ...]]] = set()
        found = []
        for name, args, thread in self.seen:
            if thread != mine:
                known.add((name, args))
            elif (name, args) not in known:
                found.append((name, args))
        return found


async def test_whatever_is_on_disk_only_is_read_by_a_worker_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "PUSH_TIMEOUT_MS", 100)
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as one:

        async def ask_everything() -> None:
            for sample in SAMPLES:
                # Nobody waits for messages that do not come.
                waits = dict.fromkeys(("pollTime", "suspendTimeoutMillis"), "100")
                ext = {name: waits.get(name, value) for name, value in sample.ext.items()}
                await one.peer.ask(RequestCode(sample.code), ext, sample.body, 20_000)

        await ask_everything()
        monkeypatch.setattr(server.store, "is_warm", lambda log_offset, size: False)
        readings = Readings(server.store, monkeypatch)
        await ask_everything()
        assert {name for name, _, _ in readings.seen} == set(Readings.NAMES)
        assert readings.unprepared() == []


async def test_a_question_that_a_worker_cannot_answer_gets_its_error(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        assert server.context.lookups == 0
        answer = await one.ask(RequestCode.VIEW_MESSAGE_BY_ID, topic="orders", offset=10**6)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no message is at log offset 1000000" in str(answer.remark)
        await one.send("orders", b"something to be looked for")
        with mock.patch.object(server.store, "message_at", side_effect=KeyError("a bug")):
            answer = await one.ask(RequestCode.VIEW_MESSAGE_BY_ID, topic="orders", offset=0)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "KeyError")
        assert server.context.lookups == 0


async def test_questions_to_the_disk_have_a_limit(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        server.context.lookups = gateways.LOOKUPS_MAX
        answer = await one.ask(RequestCode.VIEW_MESSAGE_BY_ID, topic="orders", offset=0)
        assert answer.code == ResponseCode.SYSTEM_BUSY
