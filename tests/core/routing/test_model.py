"""Routes that are remembered against a model that walks all bindings each time."""

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onelog.core.durable.tables import Change
from onelog.core.routing.exchanges import Exchange, RoutingKeys, matcher_of
from onelog.core.routing.topology import Topology
from onelog.core.routing.walk import NO_HEADERS, route_of, walk
from onelog.record.forms.amqp_fields import NO_PROPERTIES
from tests.core.routing.queues import Queue
from tests.core.routing.test_topic_trie import matches

EXCHANGES = {"one": "topic", "two": "fanout", "three": "direct"}
NAMES = st.sampled_from(list(EXCHANGES))
QUEUES = st.sampled_from(["p", "q", "r"])
KEYS = st.sampled_from(["a", "a.b", "b", "#", "*.b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), NAMES, st.just("queue"), QUEUES, KEYS),
        st.tuples(st.just("bind"), NAMES, st.just("exchange"), NAMES, KEYS),
        st.tuples(st.just("unbind"), NAMES, st.just("queue"), QUEUES, KEYS),
        st.tuples(st.just("unbind"), NAMES, st.just("exchange"), NAMES, KEYS),
        st.tuples(st.just("lose"), QUEUES),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("publish"), NAMES, st.sampled_from(["a", "a.b", "b"])),
    ),
    max_size=40,
)


class Tables:
    """Tables that record nothing."""

    topology: Topology

    def write(self, changes: list[Change]) -> None:
        self.apply(changes)

    def apply(self, changes: list[Change]) -> None:
        tables: dict[str, Any] = {each.name: each for each in self.topology.tables}
        for name, key, value in changes:
            tables[name].apply(key, value)

    def is_aside(self, name: str, key: str) -> bool:
        return False


class Model:
    """Bindings as a list."""

    def __init__(self) -> None:
        self.bound: list[tuple[str, str, str, str]] = []

    def reached(self, name: str, key: str) -> set[str]:
        found, left, seen = set(), [name], {name}
        while left:
            at = left.pop()
            for source, kind, destination, pattern in self.bound:
                if source != at or not self.wants(EXCHANGES[at], pattern, key):
                    continue
                if kind == "queue":
                    found.add(destination)
                elif destination not in seen:
                    seen.add(destination)
                    left.append(destination)
        return found

    @staticmethod
    def wants(kind: str, pattern: str, key: str) -> bool:
        return kind == "fanout" or (matches(pattern, key) if kind == "topic" else pattern == key)


def published(topology: Topology, name: str, key: str) -> set[str]:
    """What publishing does: a route that is remembered, or a walk."""
    vhost = topology.vhost("/")
    exchange = vhost.exchange(name)
    route = exchange.routes.get(key)
    if route is None:
        sought = RoutingKeys((key,), NO_PROPERTIES, NO_HEADERS)
        found = walk(vhost, exchange, sought, lambda topic: None)
        route = route_of(name, key, found.targets)
        assert found.by_key
        exchange.routes[key] = route
    return {target.name for target in route.targets}


@given(STEPS)
def test_a_message_goes_where_the_bindings_say(steps: list[Any]) -> None:
    tables, model = Tables(), Model()
    topology = tables.topology = Topology(tables, Random(1), lambda topic: False)  # type: ignore[arg-type]

    def declare(name: str) -> None:
        kind = EXCHANGES[name]
        matcher = matcher_of(kind, {}, Random(1))
        topology.declare_exchange(Exchange("/", name, kind, True, False, False, {}, matcher))

    for name in EXCHANGES:
        declare(name)
    for name in ("p", "q", "r"):
        topology.add_queue("/", Queue(name))
    for verb, *what in steps:
        if verb == "bind":
            source, kind, destination, key = what
            topology.bind("/", source, (kind, destination), key, {})
            if tuple(what) not in model.bound:
                model.bound.append(tuple(what))
        elif verb == "unbind":
            source, kind, destination, key = what
            was = topology.unbind("/", source, (kind, destination), key, {})
            assert was == (tuple(what) in model.bound)
            model.bound = [each for each in model.bound if each != tuple(what)]
        elif verb == "lose":
            topology.remove_queue("/", what[0])
            topology.add_queue("/", Queue(what[0]))
            gone = ("queue", what[0])
            model.bound = [each for each in model.bound if each[1:3] != gone]
        elif verb == "delete":
            topology.delete_exchange("/", what[0], if_unused=False)
            declare(what[0])
            gone = ("exchange", what[0])
            model.bound = [each for each in model.bound if each[0] != what[0] and each[1:3] != gone]
        else:
            assert published(topology, *what) == model.reached(*what)
    for name in EXCHANGES:
        for key in ("a", "a.b", "b"):
            assert published(topology, name, key) == model.reached(name, key)
