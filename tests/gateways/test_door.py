"""The broker is the only door: gateways use its verbs, and each verb asks whether they may."""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import onelog.gateways
from onelog.clock import ManualClock
from onelog.config import BrokerConfig
from onelog.core.access import SELF, Access, Action, Principal, Resource
from onelog.core.admin import Admin
from onelog.core.broker import Broker
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.fetch import Cursor, Limits
from onelog.core.membership.assignment import RequestMode
from onelog.core.membership.classic import Joining
from onelog.core.membership.consumers import Beat
from onelog.core.membership.coordinator import CommittingMember, Coordinator
from onelog.core.membership.members import Client, ConsumerData
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.sharing import ShareLimits, Sharing, Taking
from onelog.core.transactions.branches import Branches
from onelog.core.transactions.transactional_ids import TransactionalIds
from onelog.errors import NotPermittedError
from onelog.message import LOOPBACK, NewMessage, NewRun, message_id
from onelog.rocketmq.pop import Pop
from onelog.rocketmq.profile import NAMING, ROCKETMQ
from onelog.store.message_store import MessageStore
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.core.world import SMALL_STORE, ManualTimer
from tests.gateways import toy
from tests.gateways.remoting import live

STRANGER = Principal("mallory", "test", "198.51.100.7:1")
OPEN_TO_GATEWAYS = {
    "admin",
    "config",
    "access",
    "hooks",
    "coordinator",
    "in_place",
    "sharing",
    "branches",
    "placements",
    "schemas",
    "users",
    "logins",
    "routing",
    "workqueues",
    "sessions",
    "packet_ids",
    "retained",
    "mqtt_forwarding",
    "schedules",
    "audit",
    "kafka_settings",
}
"""What gateways may use of a broker beside its methods and properties."""
FOR_ITS_OWNER = {
    "open",
    "close",
    "reconfigure",
    "prepare_retention",
    "when_durable",
    "apply",
    "parts",
    "committing",
    "expire",
    "join_cluster",
    "forget_groups_after",
    "recount",
    "use",
    "write_end",
    "flush",
    "follow",
    "confirmed",
    "fence",
    "refuse_writes",
    "master_is",
    "stop",
    "opening",
}
DOORS: dict[str, type] = {
    "broker": Broker,
    "admin": Admin,
    "coordinator": Coordinator,
    "in_place": TransactionalIds,
    "sharing": Sharing,
    "branches": Branches,
}
"""The broker, and the parts of it that gateways call by themselves."""
TELLING_NOTHING = {
    "account",
    "channel_closed",
    "check_sizes",
    "followed",
    "is_warm",
    "unwatch",
    "when_leases_safe",
    "when_safe",
    "is_system_topic",
    "require_replicas",
    "writes_refused",
    "in_line",
    "messages_in",
    "prepare",
    "require_current",
    "serve_view",
    "take_batches_of",
    "tell_arrival",
}
"""Verbs that follow from others which were asked for, or tell nothing about anything stored."""
GATEWAYS = Path(onelog.gateways.__file__).parent


# -- nothing behind it ---------------------------------------------------------------------------


def uses_behind(source: str) -> list[str]:
    """What a module uses of a broker, or of its `admin`, that is no part of the door."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        door = DOORS.get(name.removeprefix("_"))
        if door is None:
            continue
        kind = inspect.getattr_static(door, node.attr, None)
        is_verb = inspect.isfunction(kind) or isinstance(kind, property)
        if not is_verb and not (door is Broker and node.attr in OPEN_TO_GATEWAYS):
            found.append(f"line {node.lineno}: {name}.{node.attr}")
    return found


@pytest.mark.parametrize(
    "path", [*sorted(GATEWAYS.rglob("*.py")), Path(toy.__file__)], ids=lambda path: path.stem
)
def test_gateways_use_nothing_behind_the_door(path: Path) -> None:
    assert uses_behind(path.read_text()) == []


def test_what_is_behind_the_door_is_seen() -> None:
    source = "session.broker.topics.get(x)\nstore = broker.store\nself._broker.admin.tables.write()"
    assert len(uses_behind(source)) == 3
    assert uses_behind("broker.publish(who, x)\nbroker.config.name\nbroker.admin.state(who)") == []


# -- who may -------------------------------------------------------------------------------------


class Closed(Access):
    """Lets nobody do anything."""

    is_open = False

    def may(self, principal: Principal, action: Action, resource: Resource) -> bool:
        return False


def verbs(door: type) -> list[str]:
    """The methods that do something for somebody."""
    return [
        name
        for name, _ in inspect.getmembers(door, inspect.isfunction)
        if not name.startswith("_") and name not in FOR_ITS_OWNER | TELLING_NOTHING
    ]


def arguments() -> dict[str, Any]:
    """Something sensible for every parameter that verbs have, by its name."""
    run = NewRun("orders", 0, [(0, b"x", b"")], b"", b"", 0, 0, LOOPBACK, LOOPBACK)
    return {
        "message": NewMessage("orders", 0, b"x"),
        "messages": [NewMessage("orders", 0, b"x")],
        "run": run,
        "topic": "orders",
        "group": "readers",
        "name": "orders",
        "cursors": [Cursor("readers", "orders", 0, 0)],
        "limits": Limits(1, 1 << 20, 1 << 20),
        "request": LeaseRequest("readers", lambda: [("orders", 0)], (("orders", 0),), 1, 60_000),
        "consumers": [ConsumerData("readers")],
        "producer_groups": ["writers"],
        "consumer_group": "readers",
        "producer_group": "writers",
        "client": Client("c", "channel"),
        "queues": [0],
        "offsets": [0],
        "parts": [0],
        "places": {0: 0},
        "deleted": {},
        "source": "readers",
        "target": "others",
        "mode": RequestMode(),
        "message_id": message_id(LOOPBACK, 0),
        "clean_offsets": True,
        "joining": Joining("readers", "", None, "c", "h", 10_000, 10_000, "consumer", []),
        "beat": Beat("readers", "m", 0),
        "member": CommittingMember(),
        "positions": {},
        "assignments": [],
        "wanted": None,
        "stamp": None,
        "taking": Taking("readers", "m", [("orders", 0)], 1, 1, False),
        "terms": ShareLimits(),
        "place": ("orders", 0),
    }


def config_of(verb: str) -> TopicConfig | GroupConfig:
    return GroupConfig("readers") if verb == "update_group" else TopicConfig("orders")


def call(verb: Callable[..., Any]) -> Any:
    """Call a verb as a stranger, with arguments of the right kinds."""
    known = arguments() | {"config": config_of(verb.__name__)}
    given = {}
    for name, parameter in list(inspect.signature(verb).parameters.items())[1:]:
        if name in known:
            given[name] = known[name]
        elif parameter.default is parameter.empty:
            kind = parameter.annotation
            given[name] = {int: 0, str: "x"}.get(kind, lambda *_: None)
    return verb(STRANGER, **given)


@pytest.fixture
def closed_broker(tmp_path: Path) -> Any:
    clock = ManualClock()
    timer = ManualTimer(clock)
    store = MessageStore.open(tmp_path, SMALL_STORE, clock)
    store.append([NewMessage("orders", 0, b"x")])
    broker = Broker(
        BrokerConfig(),
        store,
        clock=clock,
        schedule=timer.schedule,
        call_soon=lambda _: None,
        post=lambda _: None,
        random=Random(7),
        naming=NAMING,
        access=Closed(),
    )
    broker.open(ROCKETMQ)
    broker.topics.put(TopicConfig("orders", 1, 1))
    broker.groups.put(GroupConfig("readers"))
    yield broker
    broker.close()
    store.close()


@pytest.mark.parametrize("name", verbs(Broker))
def test_a_stranger_may_use_no_verb(closed_broker: Broker, name: str) -> None:
    end = closed_broker.store.log_end
    with pytest.raises(NotPermittedError, match="mallory may not"):
        call(getattr(closed_broker, name))
    assert closed_broker.store.log_end == end
    assert not closed_broker.writer.messages


@pytest.mark.parametrize("name", verbs(Admin))
def test_a_stranger_may_administer_nothing(closed_broker: Broker, name: str) -> None:
    end = closed_broker.store.log_end
    with pytest.raises(NotPermittedError, match="mallory may not"):
        call(getattr(closed_broker.admin, name))
    assert closed_broker.store.log_end == end


@pytest.mark.parametrize("name", verbs(Coordinator))
def test_a_stranger_may_use_no_verb_of_groups(closed_broker: Broker, name: str) -> None:
    with pytest.raises(NotPermittedError, match="mallory may not"):
        call(getattr(closed_broker.coordinator, name))


@pytest.mark.parametrize("name", verbs(TransactionalIds))
def test_a_stranger_may_use_no_verb_of_transactions(closed_broker: Broker, name: str) -> None:
    with pytest.raises(NotPermittedError, match="mallory may not"):
        call(getattr(closed_broker.in_place, name))


@pytest.mark.parametrize("name", verbs(Sharing))
def test_a_stranger_may_use_no_verb_of_share_groups(closed_broker: Broker, name: str) -> None:
    with pytest.raises(NotPermittedError, match="mallory may not"):
        call(getattr(closed_broker.sharing, name))


@pytest.mark.parametrize("name", verbs(Branches))
def test_a_stranger_may_have_no_part_in_transactions(closed_broker: Broker, name: str) -> None:
    with pytest.raises(NotPermittedError, match="mallory may not"):
        call(getattr(closed_broker.branches, name))


@pytest.mark.parametrize("door", DOORS.values())
def test_every_verb_is_told_who_asks(door: type) -> None:
    for name in verbs(door):
        first = list(inspect.signature(getattr(door, name)).parameters)[1]
        assert first == "principal", f"{door.__name__}.{name}"


class Noting(Access):
    """Notes what is asked."""

    is_open = False

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[Action, Resource]] = set()

    def may(self, principal: Principal, action: Action, resource: Resource) -> bool:
        self.asked.add((action, resource))
        return True


GROUP, TOPIC = ("consume", ("group", "readers")), ("consume", ("topic", "orders"))
OWN_RETRY, FOREIGN_RETRY = "%RETRY%readers", "%RETRY%others"


@pytest.mark.parametrize(
    ("topic", "asked"),
    [
        ("orders", {GROUP, TOPIC}),
        (OWN_RETRY, {GROUP}),
        (FOREIGN_RETRY, {GROUP, ("consume", ("topic", FOREIGN_RETRY))}),
    ],
)
def test_only_a_groups_own_retry_topic_comes_with_it(
    closed_broker: Broker, topic: str, asked: set[Any]
) -> None:
    access = closed_broker.access = Noting()
    limits = Limits(1, 1 << 20, 1 << 20)
    cursors = [Cursor("readers", topic, 0, 0)]
    closed_broker.fetch(STRANGER, cursors, limits, 0, lambda _, found: None)
    assert access.asked == asked


def test_a_lease_is_asked_for_by_its_group_and_topics(closed_broker: Broker) -> None:
    access = closed_broker.access = Noting()
    pop = Pop(closed_broker, Random(7), LOOPBACK)
    request = pop.request("readers", "orders", 0, 1, 60_000)
    closed_broker.lease(STRANGER, request, 0, lambda _, found: None)
    assert access.asked == {GROUP, TOPIC}


def test_nobody_joins_one_group_when_another_is_refused(closed_broker: Broker) -> None:
    consumers = [ConsumerData("readers"), ConsumerData("others")]
    access = closed_broker.access = Noting()
    access.may = lambda principal, action, resource: resource[1] == "readers"  # type: ignore[method-assign]
    with pytest.raises(NotPermittedError):
        closed_broker.heartbeat(STRANGER, Client("c", "channel"), consumers, [])
    assert closed_broker.members.group("readers") is None


async def test_a_client_that_may_not_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Closed()
    monkeypatch.setattr(access, "may", lambda principal, action, resource: principal is SELF)
    async with live.broker(tmp_path) as server, live.client(server) as client:
        assert (await client.send("orders", b"x")).code == ResponseCode.SUCCESS
        server.broker.access = server.broker.admin.access = access
        monkeypatch.setattr(server.broker, "_guarded", True)
        answers = [
            await client.send("orders", b"y"),
            await client.send("new", b"y"),
            await client.pull("orders", 0),
            await client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0),
            await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG),
            await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders"),
        ]
        assert {answer.code for answer in answers} == {ResponseCode.NO_PERMISSION}
        assert "may not publish topic orders" in (answers[0].remark or "")
        assert server.broker.store.max_offset("orders", 0) == 1


def test_an_open_broker_lets_everybody_in() -> None:
    assert Access.is_open
    assert Access().may(STRANGER, "delete", ("topic", "orders"))
