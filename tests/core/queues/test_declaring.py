"""Declaring queues, finding them again, and what becomes of those that nobody needs."""

from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import (
    OnelogError,
    PreconditionFailedError,
    QueueNotFoundError,
    ResourceLockedError,
    VhostNotFoundError,
)
from tests.core.queues.yard import Yard


def test_a_queue_without_a_name_gets_one(yard: Yard) -> None:
    one, two = yard.queue("", durable=False), yard.queue("", durable=False)
    assert one.name.startswith("amq.gen-")
    assert one.name != two.name


def test_declaring_it_again_finds_the_same_queue(yard: Yard) -> None:
    made = yard.queue(arguments={"x-message-ttl": 5, "x-unknown": "a"})
    assert yard.queue(arguments={"x-message-ttl": 5, "x-unknown": "b"}) is made
    assert yard.queue(arguments={"x-message-ttl": 5, "x-queue-type": "classic"}) is made


@pytest.mark.parametrize(
    "other",
    [
        {"durable": False},
        {"auto_delete": True},
        {"arguments": {"x-message-ttl": 6}},
        {"arguments": {}},
        {"arguments": {"x-message-ttl": 5, "x-max-length": 1}},
        {"arguments": {"x-message-ttl": 5, "x-queue-type": "quorum"}},
    ],
)
def test_declaring_it_again_as_another_is_refused(yard: Yard, other: dict[str, Any]) -> None:
    yard.queue(arguments={"x-message-ttl": 5})
    with pytest.raises(PreconditionFailedError, match="inequivalent arg"):
        yard.queue(**{"arguments": {"x-message-ttl": 5}, **other})


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1},
        {"x-message-ttl": "60"},
        {"x-message-ttl": True},
        {"x-expires": 0},
        {"x-max-length": -1},
        {"x-max-priority": 256},
        {"x-overflow": "explode"},
        {"x-queue-type": "fast"},
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-routing-key": "k"},
        {"x-single-active-consumer": 1},
        {"x-queue-type": "quorum", "x-max-priority": 3},
        {"x-queue-type": "quorum", "x-overflow": "reject-publish-dlx"},
        {"x-queue-type": "stream", "x-message-ttl": 3},
    ],
)
def test_arguments_that_make_no_sense_are_refused(yard: Yard, arguments: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailedError):
        yard.queue(arguments=arguments)
    with pytest.raises(QueueNotFoundError):
        yard.find()


def test_quorum_queues_are_durable_and_shared(yard: Yard) -> None:
    quorum = {"x-queue-type": "quorum"}
    for wrong in ({"durable": False}, {"exclusive": True, "owner": 1}, {"auto_delete": True}):
        with pytest.raises(PreconditionFailedError, match="invalid property"):
            yard.queue(arguments=quorum, **wrong)
    with pytest.raises(PreconditionFailedError, match="server-named"):
        yard.queue("", arguments=quorum)
    assert yard.queue(arguments=quorum).limits.delivery_limit == 20


def test_an_exclusive_queue_is_its_owners_and_goes_with_it(yard: Yard) -> None:
    queue = yard.queue(exclusive=True, owner="me")
    assert not queue.is_durable
    assert queue.durable
    for call in (
        lambda: yard.works.declare(SELF, "/", "q", durable=True, exclusive=True, owner="you"),
        lambda: yard.works.find(SELF, "/", "q", owner="you"),
        lambda: yard.works.delete(SELF, "/", "q", owner="you"),
        lambda: yard.works.purge(SELF, "/", "q", owner="you"),
        lambda: yard.consume(owner="you"),
        lambda: yard.works.declare(SELF, "/", "q", durable=True, owner="me"),
    ):
        with pytest.raises(ResourceLockedError):
            call()
    yard.works.declare(SELF, "/", "q", durable=True, exclusive=True, owner="me")
    told: list[str] = []
    yard.works.on_deleted.append(lambda queue, reason: told.append(f"{queue.name} {reason}"))
    yard.broker.groups.channel_closed("me")
    assert told == ["q exclusive"]
    assert len(yard.works) == 0


def test_a_queue_that_deletes_itself_goes_with_its_last_consumer(yard: Yard) -> None:
    yard.queue(auto_delete=True)
    one, two = yard.consume(owner="a"), yard.consume(owner="b")
    yard.works.cancel(one.consumer)
    yard.find()
    yard.broker.groups.channel_closed("b")
    with pytest.raises(QueueNotFoundError):
        yard.find()
    assert two.cancelled == ""  # It was not the broker who cancelled it.
    assert yard.core.topics.get("q") is None


def test_deleting_what_is_used_or_has_messages_can_be_refused(yard: Yard) -> None:
    queue = yard.queue()
    taker = yard.consume(prefetch=1)
    yard.put_all(b"a", b"b")
    with pytest.raises(PreconditionFailedError, match="in use"):
        yard.works.delete(SELF, "/", "q", if_unused=True)
    with pytest.raises(PreconditionFailedError, match="not empty"):
        yard.works.delete(SELF, "/", "q", if_empty=True)
    yard.works.cancel(taker.consumer)
    assert yard.works.purge(SELF, "/", "q") == 1
    assert queue.unacked == 1  # What somebody has does not count.
    assert yard.works.delete(SELF, "/", "q", if_unused=True, if_empty=True) == 0
    assert yard.works.delete(SELF, "/", "q") == 0  # There is none: nobody minds.


def test_a_queue_that_nobody_uses_expires(yard: Yard) -> None:
    yard.queue("a", arguments={"x-expires": 1_000})
    yard.queue("b", arguments={"x-expires": 1_000})
    taker = yard.consume("b")
    told: list[str] = []
    yard.works.on_deleted.append(lambda queue, reason: told.append(f"{queue.name} {reason}"))
    yard.advance(700)
    yard.get("a")
    yard.advance(700)
    assert told == []
    yard.advance(500)
    assert told == ["a expired"]
    yard.works.cancel(taker.consumer)
    yard.advance(900)
    assert told == ["a expired"]
    yard.advance(300)
    assert told == ["a expired", "b expired"]
    assert taker.cancelled == ""


def test_a_queue_that_cannot_be_deleted_now_is_still_there(yard: Yard) -> None:
    yard.queue(arguments={"x-expires": 1_000})
    yard.put_all(b"a")
    yard.core.refuse_writes("another is the master")
    with pytest.raises(OnelogError):
        yard.works.delete(SELF, "/", "q")
    yard.advance(1_500)
    yard.core.refuse_writes(None)
    assert yard.drain() == [b"a"]
    yard.advance(2_500)
    with pytest.raises(QueueNotFoundError):
        yard.find()


def test_when_it_expires_can_be_changed(yard: Yard) -> None:
    queue = yard.queue(durable=False, arguments={"x-expires": 1_000})
    queue.set_expires(None)
    yard.advance(5_000)
    yard.find()
    queue.set_expires(300)
    yard.advance(500)
    with pytest.raises(QueueNotFoundError):
        yard.find()


def test_durable_queues_are_there_after_a_restart(yard: Yard) -> None:
    arguments = {"x-message-ttl": 60_000, "x-bytes": b"\xff\x00", "x-list": [1, "a", {"b": None}]}
    yard.queue("a", arguments=arguments)
    yard.queue("b", durable=False)
    yard.queue("c", auto_delete=True)
    yard.queue("d")
    yard.works.delete(SELF, "/", "d")
    for again in (yard.restart, yard.crash):
        again()
        assert [queue.name for queue in yard.works.queues(SELF)] == ["a", "c"]
        found = yard.find("a")
        assert found.arguments == arguments
        assert found.limits.message_ttl_ms == 60_000
        assert yard.find("c").auto_delete


def test_a_vhost_goes_with_its_queues(yard: Yard) -> None:
    routing = yard.broker.publish.routing
    routing.declare_vhost(SELF, "shop")
    queue = yard.works.declare(SELF, "shop", "q", durable=True)
    assert queue.topic == "~shop~q"
    yard.queue()
    assert [each.vhost for each in yard.works.queues(SELF, "shop")] == ["shop"]
    routing.delete_vhost(SELF, "shop")
    assert [each.vhost for each in yard.works.queues(SELF)] == ["/"]
    with pytest.raises(VhostNotFoundError):
        yard.works.declare(SELF, "shop", "q", durable=True)
    assert yard.core.topics.get("~shop~q") is None


def test_a_queue_goes_with_its_topic(yard: Yard) -> None:
    yard.queue()
    taker = yard.consume()
    yard.put_all(b"a")
    yard.broker.topics.delete(SELF, "q")
    assert taker.cancelled == "deleted"
    yard.restart()
    assert len(yard.works) == 0


def test_a_stream_is_a_topic_that_is_read_by_position(yard: Yard) -> None:
    queue = yard.queue(arguments={"x-queue-type": "stream"})
    assert queue.is_stream
    yard.put_all(b"a", b"b")
    assert yard.store.max_offset("q", 0) == 2
    for call in (yard.consume, yard.get, lambda: yard.works.purge(SELF, "/", "q")):
        with pytest.raises(PreconditionFailedError, match="stream"):
            call()
    yard.restart()
    assert yard.find().is_stream
    assert yard.works.delete(SELF, "/", "q") == 0


def test_a_topic_that_is_there_already_becomes_a_queue_with_what_it_has(yard: Yard) -> None:
    yard.core.topics.put(TopicConfig("q", 2, 2))
    for queue_id in (0, 1, 1):
        yard.send("q", queue_id)
    queue = yard.queue()
    assert queue.ready == 3
    assert len(yard.drain()) == 3


def test_a_follower_of_a_closed_log_declares_nothing(yard: Yard) -> None:
    yard.queue("before", durable=False)
    yard.core.refuse_writes("another is the master")
    with pytest.raises(OnelogError):
        yard.queue()
    with pytest.raises(QueueNotFoundError):
        yard.find()
    yard.core.refuse_writes(None)
    yard.queue()
