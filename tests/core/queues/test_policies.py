"""Policies: what queues have without having been declared with it."""

from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.queues.policies import Kind, Policy
from onelog.errors import PreconditionFailedError, QueueNotFoundError
from tests.core.queues.yard import Yard, numbered


def put(yard: Yard, kind: Kind = "policy", *, name: str = "p", **settings: Any) -> None:
    given = {"pattern": ".*", **settings}
    yard.works.policies.put(SELF, kind, Policy("/", name, **given))
    yard.settle()


def test_a_policy_counts_for_queues_that_are_there_and_for_those_to_come(yard: Yard) -> None:
    yard.queue("old")
    yard.put_all(*numbered(5), key="old")
    put(yard, pattern="^(old|new)$", definition={"max-length": 2})
    assert yard.drain("old") == numbered(2, 3)
    for name in ("new", "other"):
        yard.queue(name)
        yard.put_all(*numbered(5), key=name)
    assert (yard.counts("new"), yard.counts("other")) == ((2, 0), (5, 0))
    yard.works.policies.delete(SELF, "policy", "/", "p")
    yard.put_all(*numbered(5), key="new")
    assert yard.counts("new") == (7, 0)


def test_arguments_stand_before_policies_but_the_lower_limit_counts(yard: Yard) -> None:
    queue = yard.queue(arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    put(yard, definition={"max-length": 9, "overflow": "drop-head", "message-ttl": 700})
    assert (queue.limits.length_max, queue.limits.overflow) == (5, "reject-publish")
    assert queue.limits.message_ttl_ms == 700
    put(yard, "operator", definition={"message-ttl": 300, "max-length": 4})
    assert (queue.limits.length_max, queue.limits.message_ttl_ms) == (4, 300)
    assert yard.works.policies.effective(queue)["max-length"] == 4


def test_of_several_policies_the_one_of_the_highest_priority_counts(yard: Yard) -> None:
    queue = yard.queue()
    put(yard, name="low", definition={"max-length": 1}, priority=1)
    put(yard, name="high", definition={"expires": 5_000}, priority=2)
    put(yard, name="foreign", definition={"max-length": 3}, priority=9, apply_to="quorum_queues")
    assert (queue.limits.length_max, queue.limits.expires_ms) == (None, 5_000)


def test_messages_expire_by_a_policy_and_go_to_its_dead_letters(yard: Yard) -> None:
    yard.queue("q")
    yard.queue("dead")
    yard.put_all(b"a")
    definition = {"message-ttl": 100, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    put(yard, pattern="^q$", definition=definition)
    yard.advance(200)
    yard.settle()
    assert yard.drain("dead") == [b"a"]


def test_a_policy_deletes_queues_that_nobody_uses(yard: Yard) -> None:
    yard.queue()
    put(yard, definition={"expires": 1_000})
    yard.advance(2_500)
    with pytest.raises(QueueNotFoundError):
        yard.find()


def _declare(yard: Yard, name: str, **arguments: Any) -> None:
    yard.broker.publish.routing.declare_exchange(SELF, "/", name, "fanout", arguments=arguments)


def _bind(yard: Yard, exchange: str, queue: str) -> None:
    yard.queue(queue)
    yard.broker.publish.routing.bind(SELF, "/", exchange, "queue", queue, "", {})


@pytest.mark.parametrize("apply_to", ["all", "exchanges"])
def test_a_policy_gives_exchanges_an_alternate(yard: Yard, apply_to: str) -> None:
    _declare(yard, "shop")
    _declare(yard, "unrouted")
    _declare(yard, "other")
    _bind(yard, "unrouted", "caught")
    yard.put_all(b"before", exchange="shop")
    definition = {"alternate-exchange": "unrouted"}
    put(yard, pattern="^(shop|later|amq.direct)$", definition=definition, apply_to=apply_to)
    _declare(yard, "later")
    for exchange in ("shop", "later", "other", "amq.direct"):
        yard.put_all(exchange.encode(), exchange=exchange)
    assert yard.drain("caught") == [b"shop", b"later", b"amq.direct"]
    yard.restart()
    yard.put_all(b"again", exchange="shop")
    assert yard.drain("caught") == [b"again"]
    yard.works.policies.delete(SELF, "policy", "/", "p")
    yard.put_all(b"after", exchange="shop")
    assert yard.drain("caught") == []


def test_what_an_exchange_was_declared_with_stands_before_its_policy(yard: Yard) -> None:
    _declare(yard, "mine")
    _declare(yard, "its")
    _declare(yard, "shop", **{"alternate-exchange": "mine"})
    _bind(yard, "mine", "a")
    _bind(yard, "its", "b")
    put(yard, pattern="shop", definition={"alternate-exchange": "its"}, apply_to="exchanges")
    yard.put_all(b"x", exchange="shop")
    assert (yard.drain("a"), yard.drain("b")) == ([b"x"], [])
    put(yard, name="q", pattern="mine", definition={"alternate-exchange": "its"}, apply_to="queues")
    yard.broker.publish.routing.unbind(SELF, "/", "mine", "queue", "a", "", {})
    yard.put_all(b"y", exchange="shop")
    assert (yard.drain("a"), yard.drain("b")) == ([], [])


def test_alternates_of_policies_that_lead_in_a_circle_end(yard: Yard) -> None:
    for name in ("a", "b"):
        _declare(yard, name)
    put(yard, name="a", pattern="^a$", definition={"alternate-exchange": "b"})
    put(yard, name="b", pattern="^b$", definition={"alternate-exchange": "a"})
    yard.put_all(b"x", exchange="a")
    _bind(yard, "b", "q")
    yard.put_all(b"y", exchange="a")
    assert yard.drain() == [b"y"]


def test_policies_are_there_after_a_restart(yard: Yard) -> None:
    yard.queue()
    put(yard, definition={"max-length": 2})
    yard.restart()
    yard.put_all(*numbered(5))
    assert yard.counts() == (2, 0)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("policy", {"definition": {}}),
        ("policy", {"definition": {"nonsense": 1}}),
        ("policy", {"definition": {"max-length": "many"}}),
        ("policy", {"definition": {"max-length": 1}, "pattern": "("}),
        ("policy", {"definition": {"max-length": 1}, "apply_to": "people"}),
        ("operator", {"definition": {"overflow": "drop-head"}}),
        ("policy", {"definition": {"alternate-exchange": 7}}),
        ("operator", {"definition": {"alternate-exchange": "x"}}),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(
    yard: Yard, kind: Kind, settings: dict[str, Any]
) -> None:
    with pytest.raises(PreconditionFailedError):
        put(yard, kind, **settings)
    assert yard.works.policies.listed(SELF, kind, ["/"]) == []
