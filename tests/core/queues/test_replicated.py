"""Declared queues on a log that has replicas: what is not confirmed nobody gets, and a new master
goes on where the old one was."""

from pathlib import Path

from onelog.core.access import SELF
from tests.core.queues.yard import FollowerYard, MasterYard, numbered


def test_a_message_is_delivered_when_replicas_have_confirmed_it(tmp_path: Path) -> None:
    master = MasterYard.at(tmp_path / "store")
    queue = master.queue()
    master.confirm()
    taker = master.consume(prefetch=3)
    master.put(*numbered(5))
    master.settle()
    assert (taker.got, queue.ready, master.confirmed) == ([], 0, [])
    master.confirm()
    master.settle()
    assert taker.bodies == numbered(3)
    assert len(master.confirmed) == 5
    queue.ack(taker.places)
    told: list[object] = []
    queue.when_recorded(told.append)
    master.settle()
    assert told == []
    master.confirm()
    assert told == [None]
    assert taker.bodies == numbered(5)
    assert queue.unacked_bytes == 2
    master.close()


def test_a_new_master_goes_on_where_the_old_one_was(tmp_path: Path) -> None:
    master = MasterYard.at(tmp_path / "master", quick=True)
    follower = FollowerYard.at(tmp_path / "follower")
    queue = master.queue(arguments={"x-max-priority": 1})
    master.queue("dead")
    master.queue("m", durable=False)
    other = master.queue(
        "other", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    master.confirm()
    taker = master.consume(prefetch=4)
    dropped = master.consume("other", prefetch=1)
    master.put(*numbered(6))
    master.put(*numbered(3), key="other")
    master.settle()
    master.confirm()
    master.settle()
    queue.ack(taker.places[1:3])
    other.reject(dropped.places)
    master.record()
    master.confirm()
    follower.receive(master.store)
    assert len(follower.works) == 0  # It only remembers.
    follower.promote()
    assert [each.name for each in follower.works.queues(SELF)] == ["q", "dead", "other"]
    found = follower.find()
    assert (found.ready, found.unacked, found.ready_bytes) == (4, 0, 4)
    taker = follower.consume()
    assert taker.bodies == [b"0", b"3", b"4", b"5"]
    assert taker.redelivered[:2] == [1, 1]
    assert follower.drain("dead") == [b"0"]
    assert follower.drain("other") == [b"1", b"2"]
    follower.put(b"new")
    follower.settle()
    follower.confirm_all()
    follower.settle()
    assert taker.bodies[-1] == b"new"
    master.close()
    follower.close()
