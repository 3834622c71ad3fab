"""Lanes: whose turn it is, whom to leave out, and which queue a key means."""

from collections import Counter

from onelog.client.connection.address import Address
from onelog.client.message import Queue
from onelog.client.producer.send_targets import Channel, Faults, SendTarget, SendTargets
from onelog.clock import ManualClock
from onelog.wire.remoting.send import SendTemplate


def targets(*brokers: str, queues: int = 2) -> SendTargets:
    found = []
    for broker in brokers:
        channel = Channel(broker, Address("127.0.0.1", 1))
        for number in range(queues):
            template = SendTemplate(
                "group", "orders", number, broker, default_topic="TBW102", default_queues=4
            )
            found.append(SendTarget(Queue("orders", broker, number), channel, template))
    return SendTargets(found)


def test_every_queue_has_its_turn() -> None:
    one = targets("a", "b")
    turns = Counter(one.next().queue for _ in range(12))
    assert set(turns.values()) == {3}
    assert len(turns) == 4


def test_a_turn_that_is_not_used_is_not_lost() -> None:
    one = targets("a", "b")
    first = one.next()
    one.back()
    assert one.next() is first
    second = one.next()
    for _ in range(3):
        one.back()
        assert one.next() is second


def test_the_next_queue_on_another_broker() -> None:
    one = targets("a", "b", "c")
    for _ in range(10):
        target = one.next_except({"a", "c"})
        assert target is not None
        assert target.channel.broker == "b"
    assert one.next_except({"a", "b", "c"}) is None


def test_brokers_with_faults_have_no_turn_unless_all_have_faults() -> None:
    faults = Faults(ManualClock())
    one = targets("a", "b")
    assert {one.next_unless(faults).channel.broker for _ in range(8)} == {"a", "b"}
    faults.failed("a")
    assert {one.next_unless(faults).queue.queue_id for _ in range(8)} == {0, 1}
    assert {one.next_unless(faults).channel.broker for _ in range(8)} == {"b"}
    faults.answered("b", 600)
    assert {one.next_unless(faults).channel.broker for _ in range(8)} == {"b"}


def test_a_key_means_the_queue_that_java_chooses() -> None:
    # "polygenelubricants".hashCode() is the smallest int, which has no positive counterpart.
    one = targets("a", "b", queues=3)
    assert one.of_key("a").queue == one.all[97 % 6].queue
    assert one.of_key("polygenelubricants").queue == one.all[2**31 % 6].queue
    assert one.of_key("") is one.all[0]
    assert len({one.of_key(f"key-{n}").queue for n in range(200)}) == 6


def test_a_lane_over_several_brokers_is_spread() -> None:
    assert targets("a", "b").is_spread
    assert not targets("a").is_spread
    assert str(targets("a").all[0].channel) == "a (127.0.0.1:1)"
