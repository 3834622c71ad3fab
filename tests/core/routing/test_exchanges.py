"""Which queues a message goes to."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onelog.core.access import SELF, Access, Action, Principal, Resource
from onelog.core.routing import topology
from onelog.core.routing.routing import Routing
from onelog.core.routing.topology import Topology
from onelog.errors import (
    AccessRefusedError,
    ExchangeNotFoundError,
    NotPermittedError,
    PreconditionFailedError,
    QueueNotFoundError,
    TopicNotFoundError,
    VhostNotFoundError,
)
from onelog.record.forms.amqp_fields import NO_PROPERTIES
from tests.core.replicas import Follower, Master
from tests.core.routing.queues import GUEST, Routed


def test_the_default_exchange_leads_to_the_queue_of_the_key(routed: Routed) -> None:
    routed.queue("orders")
    assert routed.publish("", "orders", b"one") == 1
    assert routed.publish("", "nobody", b"two") == 0
    assert routed.bodies("orders") == [b"one"]
    assert routed.told == [(b"one", None)]


def test_a_message_without_a_queue_is_not_appended(routed: Routed) -> None:
    routed.memory_queue("m")
    end = routed.world.store.log_end
    routed.publish("amq.direct", "nobody")
    assert routed.publish("", "m") == 1
    assert routed.world.store.log_end == end
    assert routed.told == [(b"x", None)]


def test_a_message_to_many_queues_is_one_record(routed: Routed) -> None:
    for name in "abc":
        routed.queue(name)
        routed.bind("amq.fanout", name)
    memory = routed.memory_queue("m")
    routed.bind("amq.fanout", "m")
    assert routed.publish("amq.fanout", "any", b"hello") == 4
    assert [routed.bodies(name) for name in "abc"] == [[b"hello"]] * 3
    assert memory.bodies == [b"hello"]
    places = {routed.world.messages(name)[0].log_offset for name in "abc"}
    assert len(places) == 1
    assert routed.told == [(b"hello", None)]


def test_more_queues_than_a_record_can_name_are_several_records(routed: Routed) -> None:
    names = [f"queue-{number:04}-{'x' * 60}" for number in range(700)]
    for name in names:
        routed.queue(name)
        routed.bind("amq.fanout", name)
    assert routed.publish("amq.fanout", "", b"all") == 700
    assert all(routed.bodies(name) == [b"all"] for name in names)
    assert routed.told == [(b"all", None)]


def test_a_queue_that_is_reached_on_several_ways_gets_a_message_once(routed: Routed) -> None:
    routed.queue("q")
    for key in ("#", "a.*", "a.b"):
        routed.bind("amq.topic", "q", key)
    assert routed.publish("amq.topic", "a.b") == 1
    assert routed.bodies("q") == [b"x"]


def test_direct_exchanges_compare_keys_and_topic_exchanges_match_them(routed: Routed) -> None:
    for name in "ab":
        routed.memory_queue(name)
    routed.bind("amq.direct", "a", "*.x")
    routed.bind("amq.topic", "b", "*.x")
    assert routed.publish("amq.direct", "*.x") == 1
    assert routed.publish("amq.direct", "y.x") == 0
    assert routed.publish("amq.topic", "y.x") == 1
    assert routed.publish("amq.topic", "y.z.x") == 0


@pytest.mark.parametrize(
    ("arguments", "headers", "reached"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": None}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"a": 1, "x-match": "any"}, {"a": 2, "b": 1}, False),
        ({"a": 1, "b": 2, "x-match": "any"}, {"b": 2}, True),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": 10}, {"a": 10.0}, True),
        ({"a": 10.5}, {"a": 10}, False),
        ({"a": True}, {"a": 1.0}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"x-a": 1, "x-match": "all"}, {}, True),
        ({"x-a": 1, "x-match": "all-with-x"}, {}, False),
        ({"x-a": 1, "x-match": "any-with-x"}, {"x-a": 1}, True),
        ({"x-a": 1, "x-match": "any"}, {"x-a": 1}, False),
        ({}, {}, True),
    ],
)
def test_headers_exchanges_look_at_headers(
    routed: Routed, arguments: dict[str, Any], headers: dict[str, Any], reached: bool
) -> None:
    routed.memory_queue("q")
    routed.routing.bind(SELF, "/", "amq.headers", "queue", "q", "", arguments)
    assert routed.publish("amq.headers", "k", headers=headers) == reached


def test_a_headers_binding_that_asks_for_something_else_is_refused(routed: Routed) -> None:
    routed.memory_queue("q")
    with pytest.raises(PreconditionFailedError, match="x-match"):
        routed.bind("amq.headers", "q", x_match="some")
    assert routed.routing.bindings(SELF, "/", "amq.headers") == []


def test_a_consistent_hash_spreads_keys_and_keeps_them(routed: Routed) -> None:
    queues = {name: routed.memory_queue(name) for name in ("one", "two", "light")}
    routed.routing.declare_exchange(SELF, "/", "spread", "x-consistent-hash")
    for name, weight in (("one", "10"), ("two", "10"), ("light", "1")):
        routed.bind("spread", name, weight)
    keys = [f"key-{number}" for number in range(600)]
    before = {key: _reached(routed, "spread", key) for key in keys}
    shares = Counter(before.values())
    assert shares["light"] < shares["one"] / 3
    assert min(shares["one"], shares["two"]) > 200
    routed.routing.remove_queue("/", "two")
    after = {key: _reached(routed, "spread", key) for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != "two")
    assert queues["one"].kept == []
    with pytest.raises(PreconditionFailedError, match="integer"):
        routed.bind("spread", "one", "heavy")


def _reached(routed: Routed, exchange: str, key: str) -> str:
    (target,) = routed.routing.route(SELF, "/", exchange, key)
    return str(target.name)


def test_a_consistent_hash_may_look_at_a_header(routed: Routed) -> None:
    for name in "abcd":
        routed.memory_queue(name)
    settings = {"hash-header": "customer"}
    routed.routing.declare_exchange(SELF, "/", "h", "x-consistent-hash", arguments=settings)
    for name in "abcd":
        routed.bind("h", name, "1")
    for number in range(20):
        routed.publish("h", f"k{number}", headers={"customer": "same"})
    assert sorted(len(routed.queues["/", name].kept) for name in "abcd") == [0, 0, 0, 20]


def test_a_random_exchange_reaches_one_of_its_queues(routed: Routed) -> None:
    queues = [routed.memory_queue(name) for name in "abc"]
    routed.routing.declare_exchange(SELF, "/", "any", "x-random")
    for queue in queues:
        routed.bind("any", queue.name)
    assert all(routed.publish("any", "k") == 1 for _ in range(60))
    assert all(len(queue.kept) > 5 for queue in queues)


def test_exchanges_lead_to_exchanges_and_circles_end(routed: Routed) -> None:
    routed.queue("q")
    routing = routed.routing
    for name in ("one", "two"):
        routing.declare_exchange(SELF, "/", name, "topic")
    routing.bind(SELF, "/", "one", "exchange", "two", "a.#")
    routing.bind(SELF, "/", "two", "exchange", "one", "#")
    assert routed.publish("one", "a.b") == 0
    routed.bind("two", "q", "*.b")
    assert routed.publish("one", "a.b") == 1
    assert routed.publish("one", "c.b") == 0
    assert routing.unbind(SELF, "/", "one", "exchange", "two", "a.#")
    assert routed.publish("one", "a.b") == 0


def test_what_nobody_wants_goes_to_the_alternate_exchange(routed: Routed) -> None:
    routed.queue("q")
    lost = routed.memory_queue("lost")
    alternate = {"alternate-exchange": "later"}
    routed.routing.declare_exchange(SELF, "/", "first", "direct", arguments=alternate)
    routed.bind("first", "q", "k")
    assert routed.publish("first", "other") == 0
    routed.routing.declare_exchange(SELF, "/", "later", "fanout")
    routed.bind("later", "lost")
    assert routed.publish("first", "other", b"lost") == 1
    assert routed.publish("first", "k") == 1
    assert lost.bodies == [b"lost"]


def test_an_internal_exchange_is_for_other_exchanges(routed: Routed) -> None:
    routed.memory_queue("q")
    routed.routing.declare_exchange(SELF, "/", "inner", "fanout", internal=True)
    routed.bind("inner", "q")
    routed.routing.bind(SELF, "/", "amq.fanout", "exchange", "inner", "")
    with pytest.raises(AccessRefusedError, match="internal"):
        routed.publish("inner", "")
    assert routed.publish("amq.fanout", "") == 1


def test_an_exchange_that_deletes_itself_goes_with_its_last_binding(routed: Routed) -> None:
    routing = routed.routing
    routed.queue("q")
    for name in ("last", "first"):
        routing.declare_exchange(SELF, "/", name, "fanout", auto_delete=True)
    routing.bind(SELF, "/", "first", "exchange", "last", "")
    routed.bind("last", "q")
    assert routed.publish("first", "") == 1
    routing.remove_queue("/", "q")  # Both go: the second because it led to nothing else.
    for name in ("last", "first"):
        with pytest.raises(ExchangeNotFoundError):
            routing.exchange(SELF, "/", name)


def test_a_topic_can_be_bound_without_being_a_queue(routed: Routed) -> None:
    routed.world.topic("log", queues=4)
    routed.routing.bind(SELF, "/", "amq.topic", "topic", "log", "#")
    with pytest.raises(TopicNotFoundError):
        routed.routing.bind(SELF, "/", "amq.topic", "topic", "nothing", "#")
    for number in range(40):
        assert routed.publish("amq.topic", f"key.{number}") == 1
    counts = [len(routed.world.messages("log", queue_id)) for queue_id in range(4)]
    assert sum(counts) == 40
    assert min(counts) > 0


def test_mqtt_subscriptions_with_a_wildcard_first_do_not_match_the_systems_topics(
    routed: Routed,
) -> None:
    routed.memory_queue("mqtt")
    routed.bind("amq.topic", "mqtt", "#", x_mqtt=True)
    assert routed.publish("amq.topic", "$SYS.load") == 0
    assert routed.publish("amq.topic", "load") == 1
    routed.memory_queue("amqp")
    routed.bind("amq.topic", "amqp", "#")
    assert routed.publish("amq.topic", "$SYS.load") == 1


# -- declaring ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"kind": "fanout"}, "'type'"),
        ({"durable": False}, "'durable'"),
        ({"auto_delete": True}, "'auto_delete'"),
        ({"internal": True}, "'internal'"),
        ({"arguments": {"alternate-exchange": "x"}}, "'alternate-exchange'"),
    ],
)
def test_an_exchange_is_declared_again_only_as_it_is(
    routed: Routed, settings: dict[str, Any], word: str
) -> None:
    first = routed.routing.declare_exchange(SELF, "/", "e", "topic")
    assert routed.routing.declare_exchange(SELF, "/", "e", "topic") is first
    with pytest.raises(PreconditionFailedError, match=word):
        routed.routing.declare_exchange(SELF, "/", "e", **{"kind": "topic", **settings})


def test_what_is_not_there_or_not_ones_own_is_said(routed: Routed) -> None:
    routing = routed.routing
    with pytest.raises(VhostNotFoundError):
        routed.publish("", "q", vhost="nowhere")
    with pytest.raises(ExchangeNotFoundError, match="no exchange 'x' in vhost '/'"):
        routed.publish("x", "q")
    with pytest.raises(QueueNotFoundError):
        routed.bind("amq.direct", "nothing")
    with pytest.raises(ExchangeNotFoundError):
        routing.unbind(SELF, "/", "x", "queue", "q", "")
    with pytest.raises(PreconditionFailedError, match="type"):
        routing.declare_exchange(SELF, "/", "e", "x-nothing")
    with pytest.raises(PreconditionFailedError, match="x-delayed-type"):
        routing.declare_exchange(SELF, "/", "e", "x-delayed-message")
    for name in ("", "amq.mine"):
        with pytest.raises(AccessRefusedError):
            routing.declare_exchange(SELF, "/", name, "direct")
        with pytest.raises(AccessRefusedError):
            routing.delete_exchange(SELF, "/", name)
    with pytest.raises(AccessRefusedError):
        routed.bind("", "q")
    assert not routing.delete_exchange(SELF, "/", "never-was")
    assert routing.declare_exchange(SELF, "/", "amq.topic", "topic").is_predeclared


def test_an_exchange_in_use_is_kept_if_that_is_asked_for(routed: Routed) -> None:
    routed.memory_queue("q")
    routed.routing.declare_exchange(SELF, "/", "e", "direct")
    routed.bind("e", "q", "k")
    with pytest.raises(PreconditionFailedError, match="in use"):
        routed.routing.delete_exchange(SELF, "/", "e", if_unused=True)
    assert routed.routing.delete_exchange(SELF, "/", "e")
    assert routed.routing.bindings(SELF, "/", destination=("queue", "q"))[1:] == []


def test_bindings_are_listed_from_and_to(routed: Routed) -> None:
    routed.queue("q")
    routed.bind("amq.topic", "q", "a.#")
    routed.bind("amq.topic", "q", "a.#")  # The same once more is the same.
    routed.bind("amq.topic", "q", "a.#", level=1)
    routed.bind("amq.direct", "q", "k")
    found = routed.routing.bindings(SELF, "/", "amq.topic")
    assert [(each.key, each.arguments) for each in found] == [("a.#", {}), ("a.#", {"level": 1})]
    assert len({each.properties_key for each in found}) == 2
    to = routed.routing.bindings(SELF, "/", destination=("queue", "q"))
    assert [each.source for each in to] == ["", "amq.topic", "amq.topic", "amq.direct"]
    routed.routing.bind(SELF, "/", "amq.topic", "queue", "q", "a.#", {"level": 2}, instead=True)
    (left,) = routed.routing.bindings(SELF, "/", "amq.topic")
    assert left.arguments == {"level": 2}


def test_an_exchange_that_looks_at_each_binding_has_few(
    routed: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "BINDINGS_LOOKED_AT_MAX", 3)
    routed.memory_queue("q")
    for number in range(3):
        routed.bind("amq.headers", "q", n=number)
        routed.bind("amq.topic", "q", f"k{number}")
    routed.bind("amq.topic", "q", "one more")
    with pytest.raises(PreconditionFailedError, match="limit"):
        routed.bind("amq.headers", "q", n=4)


def test_routes_are_found_anew_when_something_changes(routed: Routed) -> None:
    first, second = routed.memory_queue("a"), routed.memory_queue("b")
    routed.routing.declare_exchange(SELF, "/", "e", "direct")
    routed.bind("e", "a", "k")
    routed.publish("e", "k")
    routed.bind("e", "b", "k")
    routed.publish("e", "k")
    routed.routing.unbind(SELF, "/", "e", "queue", "a", "k")
    routed.publish("e", "k")
    routed.routing.remove_queue("/", "b")
    assert routed.publish("e", "k") == 0
    assert (len(first.kept), len(second.kept)) == (2, 2)
    routed.publish("", "a")
    routed.routing.remove_queue("/", "a")
    assert routed.publish("", "a") == 0


# -- vhosts, and what outlives a restart --------------------------------------------------------


def test_vhosts_know_nothing_of_each_other(routed: Routed) -> None:
    routing = routed.routing
    routing.declare_vhost(SELF, "shop", "the shop", ["new"])
    routed.queue("q")
    routed.queue("q", "shop")
    routed.publish("", "q", b"here")
    routed.publish("", "q", b"there", vhost="shop")
    assert routed.bodies("q") == [b"here"]
    assert routed.bodies("~shop~q") == [b"there"]
    gone: list[str] = []
    routing.on_vhost_deleted.append(gone.append)
    routing.delete_vhost(SELF, "shop")
    assert gone == ["shop"]
    assert not routing.is_open_to(SELF, "shop")
    with pytest.raises(AccessRefusedError):
        routing.delete_vhost(SELF, "/")


def described(known: Topology) -> list[Any]:
    return [
        (
            vhost.name,
            vhost.description,
            vhost.tags,
            each.name,
            each.kind,
            each.auto_delete,
            each.internal,
            each.arguments,
            list(each.bindings.values()),
        )
        for vhost in known.vhosts.values()
        for each in vhost.exchanges.values()
        if each.durable
    ]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_what_is_durable_is_there_after_a_restart(routed: Routed, how: str) -> None:
    routing = routed.routing
    routing.declare_vhost(SELF, "shop@1", "the shop")
    routed.queue("q")
    routed.queue("q", "shop@1")
    routed.memory_queue("m")
    given = {"alternate-exchange": "amq.fanout", "x-bytes": b"\0\xff", "n": [1, {"a": None}]}
    routing.declare_exchange(SELF, "shop@1", "e~1", "topic", arguments=given)
    routing.bind(SELF, "shop@1", "e~1", "queue", "q", "a.@.#", {"when": 3.5})
    routing.declare_exchange(SELF, "/", "gone", "fanout", durable=False)
    routing.declare_exchange(SELF, "/", "auto", "fanout", auto_delete=True)
    routing.bind(SELF, "/", "amq.topic", "exchange", "auto", "#")
    routing.bind(SELF, "/", "amq.topic", "exchange", "gone", "#")
    routed.bind("auto", "q")
    routed.bind("gone", "q")
    routed.bind("amq.topic", "m", "#")
    before = described(routed.world.core.topology)
    getattr(routed.world, how)()
    after = described(routed.world.core.topology)
    for entry in before:
        entry[-1][:] = [each for each in entry[-1] if each.durable]
    assert after == before
    routed.come_back()
    assert routed.publish("amq.topic", "k", b"kept") == 1
    assert routed.bodies("q") == [b"kept"]
    with pytest.raises(ExchangeNotFoundError):
        routed.publish("gone", "k")


def test_a_replica_knows_the_same_exchanges(tmp_path: Path) -> None:
    master = Master.at(tmp_path / "master", quick=True)
    routed = Routed(master)
    routed.queue("q")
    routed.routing.declare_vhost(SELF, "shop")
    routed.routing.declare_exchange(SELF, "/", "e", "topic")
    routed.bind("e", "q", "#")
    follower = Follower.at(tmp_path / "follower")
    follower.receive(master.store)
    assert described(follower.core.topology) == described(master.core.topology)
    routed.routing.delete_exchange(SELF, "/", "e")
    master.broker.queues.declared.declare(SELF, "/", "kept", durable=True)
    routed.publish("", "kept", b"x")
    follower.receive(master.store)
    assert described(follower.core.topology) == described(master.core.topology)
    assert follower.core.retention_holds.needed_from() < follower.store.log_end
    assert [pin.queue for pin in follower.core.retention_holds.holds()] == ["kept"]
    master.close()
    follower.promote()
    promoted = Routed(follower)
    assert promoted.publish("", "kept", b"y") == 1
    assert promoted.bodies("kept") == [b"x", b"y"]
    follower.close()


# -- who may --------------------------------------------------------------------------------------


class Listed(Access):
    """Lets a few do what is listed."""

    is_open = False

    def __init__(self, *allowed: tuple[str, str, str]) -> None:
        super().__init__()
        self.allowed = set(allowed)
        self.asked: list[tuple[str, str, str]] = []

    def may(self, principal: Principal, action: Action, resource: Resource) -> bool:
        self.asked.append((action, *resource))
        return principal == SELF or (action, *resource) in self.allowed


def test_every_verb_is_asked_about(routed: Routed) -> None:
    routed.memory_queue("q")
    access = Listed(
        ("publish", "exchange", "amq.topic"), ("describe", "vhost", "/"), ("describe", "queue", "q")
    )
    routing = Routing(access, routed.world.core.topology, routed.world.core.publishing, Random())
    raw, told = NO_PROPERTIES, routed.on_stored
    assert routing.publish(GUEST, "/", "amq.topic", "k", raw, b"", told) == 0
    for refused in (
        lambda: routing.publish(GUEST, "/", "", "q", raw, b"", told),
        lambda: routing.publish_record(GUEST, "/", "", "q", b"", 0, told),
        lambda: routing.stage(GUEST, "me", "", "/", "", "q", raw, b""),
        lambda: routing.declare_exchange(GUEST, "/", "e", "direct"),
        lambda: routing.delete_exchange(GUEST, "/", "e"),
        lambda: routing.exchange(GUEST, "/", "amq.direct"),
        lambda: routing.bind(GUEST, "/", "amq.topic", "queue", "q", "#"),
        lambda: routing.unbind(GUEST, "/", "amq.topic", "queue", "q", "#"),
        lambda: routing.declare_vhost(GUEST, "v"),
        lambda: routing.delete_vhost(GUEST, "v"),
    ):
        with pytest.raises(NotPermittedError):
            refused()
    assert ("publish", "exchange", "amq.default") in access.asked
    assert len(routing.bindings(GUEST, "/")) == 1
    assert routed.routing.bindings(SELF, "/", "amq.topic") == []


def test_who_publishes_to_a_topic_by_its_name_may_do_that(routed: Routed) -> None:
    routed.world.topic("bills", queues=1)
    access = Listed(("publish", "exchange", "amq.default"))
    routing = Routing(access, routed.world.core.topology, routed.world.core.publishing, Random())
    told = routed.on_stored
    with pytest.raises(NotPermittedError):
        routing.publish(GUEST, "/", "", "bills", NO_PROPERTIES, b"x", told)
    access.allowed.add(("publish", "topic", "bills"))
    assert routing.publish(GUEST, "/", "", "bills", NO_PROPERTIES, b"x", told) == 1
    assert routing.publish(GUEST, "/", "", "nothing", NO_PROPERTIES, b"x", told) == 0
