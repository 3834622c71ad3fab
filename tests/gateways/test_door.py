"""The broker is the only door: gateways use its verbs, and each verb asks whether they may."""

import ast
import inspect
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import onelog.gateways
from onelog.clock import ManualClock
from onelog.config import BrokerConfig
from onelog.core.access import SELF, Access, Action, Principal, Resource
from onelog.core.admin import Admin
from onelog.core.assembly import Assembly
from onelog.core.broker import Broker
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topic_catalog import TopicCatalog
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.cursors import Cursors
from onelog.core.cursors.fetch import Cursor, Limits
from onelog.core.durable.storage import Runtime
from onelog.core.membership.assignment import RequestMode
from onelog.core.membership.classic import Joining
from onelog.core.membership.consumers import Beat
from onelog.core.membership.coordinator import CommittingMember, Coordinator
from onelog.core.membership.group_membership import GroupMembership
from onelog.core.membership.members import Client, ConsumerData
from onelog.core.publish import Publisher
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.receiving import Receiving
from onelog.core.queues.sharing import ShareLimits, Sharing, Taking
from onelog.core.transactions.branches import Branches
from onelog.core.transactions.transactional_ids import TransactionalIds
from onelog.core.transactions.transactions import Transactions
from onelog.core.users.users import Users
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
    "topics",
    "groups",
    "queues",
    "cursors",
    "publish",
    "transactions",
    "users",
    "admin",
}
"""The facets of a broker, and nothing else."""
DOORS: dict[str, type] = {
    "broker": Broker,
    "topics": TopicCatalog,
    "groups": GroupMembership,
    "queues": Receiving,
    "cursors": Cursors,
    "publish": Publisher,
    "transactions": Transactions,
    "admin": Admin,
    "coordinator": Coordinator,
    "in_place": TransactionalIds,
    "sharing": Sharing,
    "branches": Branches,
}
"""The broker, its facets, and the parts of these that gateways call by themselves."""
FOR_ITS_OWNER = {
    "admitted",
    "apply",
    "parts",
    "committing",
    "is_plain",
    "postponed",
    "take",
    "expire",
    "open",
    "recount",
    "stop",
    "use",
    "when_durable",
    "write_end",
    "store_time",
    "seen_message",
}
TELLING_NOTHING = {
    "account",
    "channel_closed",
    "check_sizes",
    "followed",
    "forget_after",
    "in_line",
    "is_system",
    "is_warm",
    "join_cluster",
    "messages_in",
    "notify_arrival",
    "prepare",
    "refusal",
    "require_current",
    "require_replicas",
    "serve_view",
    "set_batch_bytes_max",
    "unwatch",
    "when_leases_safe",
    "when_safe",
}
"""Verbs that follow from others which were asked for, or tell nothing about anything stored."""
GATEWAYS = Path(onelog.gateways.__file__).parent


# -- nothing behind it ---------------------------------------------------------------------------


def _name(node: ast.expr) -> str:
    name = node.attr if isinstance(node, ast.Attribute) else str(getattr(node, "id", ""))
    return name.removeprefix("_")


def _is_broker(node: ast.expr) -> bool:
    """Whether it is called so, and is no section of a configuration."""
    is_section = isinstance(node, ast.Attribute) and _name(node.value) == "config"
    return _name(node) == "broker" and not is_section


def uses_behind(source: str) -> list[str]:
    """What a module uses of a broker, or of its facets, that is no part of the door."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        if _is_broker(owner):
            is_open = node.attr in OPEN_TO_GATEWAYS
        elif isinstance(owner, ast.Attribute) and _is_broker(owner.value):
            is_open = not node.attr.startswith("_")
        else:
            continue
        if not is_open:
            found.append(f"line {node.lineno}: {_name(owner)}.{node.attr}")
    return found


@pytest.mark.parametrize(
    "path", [*sorted(GATEWAYS.rglob("*.py")), Path(toy.__file__)], ids=lambda path: path.stem
)
def test_gateways_use_nothing_behind_the_door(path: Path) -> None:
    assert uses_behind(path.read_text()) == []


def test_what_is_behind_the_door_is_seen() -> None:
    source = "session.broker.store.get()\nstore = broker.core\nself._broker.admin._tables.write()"
    assert len(uses_behind(source)) == 3
    assert (
        uses_behind(
            "broker.publish.send(who, x)\nbroker.admin.config.name\nbroker.admin.state(who)"
        )
        == []
    )


# -- who may -------------------------------------------------------------------------------------


class Closed(Users):
    """Lets nobody do anything."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False

    def may(self, principal: Principal, action: Action, resource: Resource) -> bool:
        return False


class Noting(Users):
    """Notes what is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False
        self.asked: set[tuple[Action, Resource]] = set()

    def may(self, principal: Principal, action: Action, resource: Resource) -> bool:
        self.asked.add((action, resource))
        return True


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
        "batch": NewMessage("orders", 0, b"x"),
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


def opened(folder: Path, users: Users) -> Iterator[Assembly]:
    """A core with a topic, a message in it, and a group."""
    clock = ManualClock()
    timer = ManualTimer(clock)
    store = MessageStore.open(folder, SMALL_STORE, clock)
    store.append([NewMessage("orders", 0, b"x")])
    core = Assembly(
        BrokerConfig(),
        store,
        Runtime(
            clock=clock,
            schedule=timer.schedule,
            call_soon=lambda _: None,
            post=lambda _: None,
            random=Random(7),
        ),
        naming=NAMING,
        users=users,
    )
    core.open(ROCKETMQ)
    core.topics.put(TopicConfig("orders", 1, 1))
    core.groups.put(GroupConfig("readers"))
    yield core
    core.close()
    store.close()


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Assembly]:
    """One in which nobody may do anything."""
    yield from opened(tmp_path, Closed())


@pytest.fixture
def noting(tmp_path: Path) -> Iterator[tuple[Assembly, Noting]]:
    """One that notes what is asked."""
    for core in opened(tmp_path, users := Noting()):
        users.asked.clear()
        yield core, users


VERBS = [
    (path, name)
    for path, door in [
        *((facet, DOORS[facet]) for facet in OPEN_TO_GATEWAYS if facet in DOORS),
        ("groups.coordinator", Coordinator),
        ("transactions.in_place", TransactionalIds),
        ("transactions.branches", Branches),
        ("queues.sharing", Sharing),
    ]
    for name in verbs(door)
]


@pytest.mark.parametrize(("facet", "name"), sorted(VERBS))
def test_a_stranger_may_use_no_verb(closed: Assembly, facet: str, name: str) -> None:
    end = closed.store.log_end
    verb = attrgetter(f"{facet}.{name}")(closed.broker)

    def use() -> None:
        found = call(verb)
        if inspect.isgenerator(found):
            next(found)

    with pytest.raises(NotPermittedError, match="mallory may not"):
        use()
    assert closed.store.log_end == end
    assert not closed.writer.messages


@pytest.mark.parametrize("door", DOORS.values())
def test_every_verb_is_told_who_asks(door: type) -> None:
    for name in verbs(door):
        first = list(inspect.signature(getattr(door, name)).parameters)[1]
        assert first == "principal", f"{door.__name__}.{name}"


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
    noting: tuple[Assembly, Noting], topic: str, asked: set[Any]
) -> None:
    core, access = noting
    limits = Limits(1, 1 << 20, 1 << 20)
    cursors = [Cursor("readers", topic, 0, 0)]
    core.broker.cursors.fetch(STRANGER, cursors, limits, 0, lambda _, found: None)
    assert access.asked == asked


def test_a_lease_is_asked_for_by_its_group_and_topics(
    noting: tuple[Assembly, Noting],
) -> None:
    core, access = noting
    pop = Pop(core, Random(7), LOOPBACK)
    request = pop.request("readers", "orders", 0, 1, 60_000)
    core.broker.queues.lease(STRANGER, request, 0, lambda _, found: None)
    assert access.asked == {GROUP, TOPIC}


def test_nobody_joins_one_group_when_another_is_refused(
    noting: tuple[Assembly, Noting],
) -> None:
    core, access = noting
    consumers = [ConsumerData("readers"), ConsumerData("others")]
    access.may = lambda principal, action, resource: resource[1] == "readers"  # type: ignore[method-assign]
    with pytest.raises(NotPermittedError):
        core.broker.groups.heartbeat(STRANGER, Client("c", "channel"), consumers, [])
    assert core.members.group("readers") is None


async def test_a_client_that_may_not_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live.broker(tmp_path) as server, live.client(server) as client:
        assert (await client.send("orders", b"x")).code == ResponseCode.SUCCESS
        users = server.broker.users
        monkeypatch.setattr(users, "may", lambda principal, action, resource: principal is SELF)
        monkeypatch.setattr(users, "is_open", False)
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
        assert server.core.store.max_offset("orders", 0) == 1


def test_an_open_broker_lets_everybody_in() -> None:
    assert Access.is_open
    assert Access().may(STRANGER, "delete", ("topic", "orders"))
