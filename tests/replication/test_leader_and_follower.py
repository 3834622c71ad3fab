"""A leader and its followers, on real stores: the log byte for byte, and what is safe."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.config import ReplicationConfig
from onelog.errors import NotMasterError, OnelogError, ReplicaTimeoutError
from onelog.replication import follower as follower_module
from onelog.replication.leader import BACKLOG_BYTES_MAX, Leader
from onelog.wire.replication import default_ha, epoch_ha
from tests.replication.wired import Node, Wire

LOCAL = ReplicationConfig(ack="local", replicas=2)
ONE = ReplicationConfig(ack="one", replicas=2)
MAJORITY = ReplicationConfig(ack="majority", replicas=3)

MakeNode = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeNode]:
    nodes: list[Node] = []

    def made(node_id: int, *, gated: bool = True, name: str = "") -> Node:
        nodes.append(Node(tmp_path / (name or f"node-{node_id}"), node_id, gated=gated))
        return nodes[-1]

    yield made
    for node in nodes:
        node.store.close()


def accept(leader: Leader, node: Node) -> None:
    """Be the judge: record what was asked for last."""
    if node.proposals:
        leader.in_sync_is(node.proposals.pop(), leader.revision + 1)
        node.proposals.clear()


def entries(node: Node) -> int:
    node.run_soon()
    return node.store.max_offset("orders", 0)


# -- the default protocol ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 1_000, 1 << 30])
def test_a_slave_gets_the_log_byte_for_byte_over_segments(make: MakeNode, size: int) -> None:
    master, slave = make(0, gated=False), make(1)
    leader, follower = master.lead(LOCAL), slave.follow(epochs=False)
    master.append(300)
    assert len(master.store.log.segments) > 2
    wire = Wire(leader, follower, epochs=False)
    wire.settle(size)
    slave.run_soon()
    assert slave.bytes_of_log() == master.bytes_of_log()
    assert entries(slave) == entries(master) == 300
    (seen,) = leader.followers
    assert (seen.acknowledged, seen.behind_bytes) == (master.store.log_end, 0)


def test_what_is_appended_later_follows(make: MakeNode) -> None:
    master, slave = make(0, gated=False), make(1)
    leader, follower = master.lead(ONE), slave.follow(epochs=False)
    wire = Wire(leader, follower, epochs=False)
    wire.settle()
    for _ in range(5):
        master.append(3)
        leader.appended()
        wire.settle()
    assert slave.bytes_of_log() == master.bytes_of_log()
    assert entries(slave) == 15


def test_with_asynchronous_replication_what_comes_close_together_goes_together(
    make: MakeNode,
) -> None:
    master, slave = make(0, gated=False), make(1)
    leader, follower = master.lead(LOCAL), slave.follow(epochs=False)
    wire = Wire(leader, follower, epochs=False)
    wire.settle()
    for _ in range(5):
        master.append(1)
        leader.appended()
    assert not wire.to_follower.sent
    assert len(master.soon) == 1
    master.run_soon()
    wire.settle()
    assert slave.bytes_of_log() == master.bytes_of_log()


def test_what_is_much_is_entered_in_steps_and_records_may_be_larger_than_a_step(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "CONFIRM_BYTES_MIN", 2_000)
    monkeypatch.setattr(follower_module, "CONFIRM_BYTES_MAX", 8_000)
    monkeypatch.setattr(follower_module, "CONFIRM_RECORDS", 20)
    master, slave = make(0, gated=False), make(1)
    leader, follower = master.lead(LOCAL), slave.follow(epochs=False)
    master.append(60, b"small")
    master.append(2, bytes(20_000))
    master.append(60, b"small")
    Wire(leader, follower, epochs=False).settle()
    steps = [slave.store.tail.records_received]
    while slave.soon:
        slave.soon.pop(0)()
        steps.append(slave.store.tail.records_received)
    assert steps[-1] == entries(slave) == 122
    assert len(steps) > 5


def test_a_slave_that_was_away_goes_on_where_it_was(make: MakeNode) -> None:
    master, slave = make(0, gated=False), make(1)
    leader, follower = master.lead(LOCAL), slave.follow(epochs=False)
    master.append(100)
    wire = Wire(leader, follower, epochs=False)
    while slave.store.tail.raw_end < 20_000:
        wire.move(777)
    wire.cut()
    assert leader.followers == []
    master.append(100)
    Wire(leader, follower, epochs=False).settle()
    slave.run_soon()
    assert slave.bytes_of_log() == master.bytes_of_log()
    assert entries(slave) == 200


def test_a_slave_that_has_another_log_is_told_so(
    make: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    master, other = make(0, gated=False), make(5, gated=False)
    master.append(20)
    other.append(10, b"another body, so that the sizes are the same" * 12)
    other.store.close()
    slave = make(1, name="node-5")
    before = slave.bytes_of_log()
    wire = Wire(master.lead(LOCAL), slave.follow(epochs=False), epochs=False)
    with caplog.at_level(logging.WARNING):
        wire.settle()
    assert wire.closed
    assert "differs from this one" in caplog.text
    assert slave.bytes_of_log() == before


def test_a_slave_that_is_ahead_is_told_so(make: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    master, other = make(0, gated=False), make(5, gated=False)
    other.append(300)
    other.store.close()
    slave = make(1, name="node-5")
    wire = Wire(master.lead(LOCAL), slave.follow(epochs=False), epochs=False)
    with caplog.at_level(logging.WARNING):
        wire.settle()
    assert wire.to_follower.closed
    assert "never wrote or has lost" in caplog.text


def test_a_slow_slave_costs_no_memory(make: MakeNode) -> None:
    master, slave = make(0, gated=False), make(1)
    leader, follower = master.lead(LOCAL), slave.follow(epochs=False)
    for _ in range(12):
        master.append(100, b"x" * 5_000)
    wire = Wire(leader, follower, epochs=False)
    wire.to_follower.stuck = True
    leader.sessions[0].received(bytes(wire.to_leader.sent))
    wire.to_leader.sent.clear()
    assert BACKLOG_BYTES_MAX <= wire.to_follower.backlog < BACKLOG_BYTES_MAX + (1 << 20) + 100
    wire.settle()
    while wire.to_follower.sent or slave.store.tail.raw_end < master.store.log_end:
        leader.sessions[0].ready()
        wire.settle()
    assert slave.bytes_of_log() == master.bytes_of_log()


def test_heart_beats_go_both_ways_and_silence_ends_the_connection(make: MakeNode) -> None:
    master, slave = make(0, gated=False), make(1)
    leader, follower = master.lead(LOCAL), slave.follow(epochs=False)
    wire = Wire(leader, follower, epochs=False)
    wire.settle()
    for node, tick in ((master, leader.tick), (slave, follower.tick)):
        node.clock.advance(5_000)
        tick()
    assert wire.to_follower.sent == default_ha.encode_header(0, 0)
    assert wire.to_leader.sent == default_ha.encode_report(0)
    wire.settle()
    for node, tick in ((master, leader.tick), (slave, follower.tick)):
        node.clock.advance(20_000)
        tick()
    assert wire.to_follower.closed
    assert wire.to_leader.closed


def test_one_acknowledges_when_a_slave_has_it(make: MakeNode) -> None:
    master, slave = make(0, gated=False), make(1)
    leader, follower = master.lead(ONE), slave.follow(epochs=False)
    wire = Wire(leader, follower, epochs=False)
    wire.settle()
    accept(leader, master)
    told: list[OnelogError | None] = []
    end = master.append(1)
    leader.when_replicated(end, told.append)
    leader.appended()
    assert told == []
    wire.settle()
    assert told == [None]
    assert leader.available(2)
    wire.cut()
    leader.tick()
    accept(leader, master)
    assert not leader.available(2)


@given(raw=st.binary(min_size=1, max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_garbage_ends_the_connection_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    master, slave = Node(folder / "a", 0, gated=False), Node(folder / "b", 1, gated=True)
    try:
        master.append(2)
        for epochs in (False, True):
            leader, follower = master.lead(LOCAL), slave.follow(epochs=epochs)
            wire = Wire(leader, follower, epochs=epochs)
            leader.sessions[0].received(raw)
            assert follower.session is not None
            follower.session.received(raw)
            assert slave.store.confirmed <= slave.store.log_end
            wire.cut()
    finally:
        master.store.close()
        slave.store.close()


# -- epochs --------------------------------------------------------------------------------------


def test_a_follower_learns_the_log_and_its_epochs(make: MakeNode) -> None:
    master, slave = make(0, gated=False), make(1)
    for epoch in (1, 2, 5):
        master.epochs.begin(epoch, master.store.log_end)
        master.append(100)
    leader, follower = master.lead(LOCAL), slave.follow(epochs=True)
    Wire(leader, follower, epochs=True).settle(1_000)
    slave.run_soon()
    assert slave.bytes_of_log() == master.bytes_of_log()
    assert slave.epochs.entries == master.epochs.entries
    assert entries(slave) == 300


def test_a_follower_comes_back_whose_end_is_of_several_epochs(make: MakeNode) -> None:
    master, slave = make(0, gated=False), make(1)
    for epoch in (1, 2, 5):
        master.epochs.begin(epoch, master.store.log_end)
        master.append(3)
    leader, follower = master.lead(LOCAL), slave.follow(epochs=True)
    wire = Wire(leader, follower, epochs=True)
    wire.settle()
    wire.cut()
    master.append(3)
    wire = Wire(leader, follower, epochs=True)
    wire.settle(100)
    assert not wire.closed
    assert slave.bytes_of_log() == master.bytes_of_log()
    assert slave.epochs.entries == master.epochs.entries
    assert leader.followers[0].behind_bytes == 0


def test_what_only_the_old_master_had_is_cut(make: MakeNode) -> None:
    """It wrote without its follower; the follower became master; the old one comes back."""
    old, new = make(0, gated=False), make(1)
    old.epochs.begin(1, 0)
    old.append(10)
    wire = Wire(old.lead(LOCAL), new.follow(epochs=True), epochs=True)
    wire.settle()
    wire.cut()
    common = int(old.store.log_end)
    old.append(7)
    assert entries(old) == 17
    new.store.tail.set_gated(False)
    new.epochs.begin(2, new.store.log_end)
    new.append(20, b"y" * 300)
    old.store.tail.set_gated(True)
    Wire(new.lead(LOCAL), old.follow(epochs=True), epochs=True).settle()
    old.run_soon()
    assert [place for place, _ in old.cuts] == [common]
    assert old.bytes_of_log() == new.bytes_of_log()
    assert old.epochs.entries == new.epochs.entries
    assert entries(old) == entries(new) == 30


def test_a_founder_that_was_lost_before_anybody_had_anything_comes_back(make: MakeNode) -> None:
    founder, master = make(0), make(1, gated=False)
    founder.epochs.begin(1, 0)
    founder.append(3)
    master.epochs.begin(2, 0)
    master.append(20, b"y" * 100)
    Wire(master.lead(LOCAL), founder.follow(epochs=True), epochs=True).settle()
    assert [place for place, _ in founder.cuts] == [0]
    assert founder.bytes_of_log() == master.bytes_of_log()
    assert founder.epochs.entries == [(2, 0)]


def test_what_others_may_have_read_is_not_cut_for_a_master_that_began_later(
    make: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    old, young = make(0, gated=False), make(1, gated=False)
    old.epochs.begin(1, 0)
    old.append(3)
    young.epochs.begin(2, 0)
    old.store.tail.set_gated(True)
    before = old.bytes_of_log()
    with caplog.at_level(logging.WARNING):
        Wire(young.lead(LOCAL), old.follow(epochs=True), epochs=True).settle()
    assert old.cuts == []
    assert old.bytes_of_log() == before
    assert "have nothing in common: if this node has the messages that count" in caplog.text


def test_the_same_epochs_do_not_make_another_log_the_same(
    make: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Every set begins with epoch 1 from 0 on."""
    master, stranger = make(0, gated=False), make(1, gated=False)
    for node, body in ((master, b"one"), (stranger, b"two")):
        node.epochs.begin(1, 0)
        node.append(300, body * 200)
    stranger.store.tail.set_gated(True)
    before = stranger.bytes_of_log()
    with caplog.at_level(logging.WARNING):
        wire = Wire(master.lead(LOCAL), stranger.follow(epochs=True), epochs=True)
        wire.settle()
    assert wire.closed
    assert "differs from this one" in caplog.text
    assert stranger.bytes_of_log() == before


@pytest.mark.parametrize("epochs", [False, True])
def test_a_master_that_has_deleted_the_beginning_is_followed_if_nothing_lacks(
    make: MakeNode, epochs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave, late = make(0, gated=False), make(1), make(2)
    master.epochs.begin(1, 0)
    leader = master.lead(LOCAL)
    master.append(115)
    wires = [Wire(leader, slave.follow(epochs=epochs), epochs=epochs)]
    wires[0].settle()
    wires[0].cut()
    master.append(20)
    first = master.store.log.segments[0]
    wires = [Wire(leader, late.follow(epochs=epochs), epochs=epochs)]
    while late.store.tail.raw_end < 10_000:
        wires[0].move(500)
    wires[0].cut()
    master.store.log.drop_first()
    assert master.store.log.start == first.start + first.size <= slave.store.tail.raw_end
    Wire(leader, slave.follow(epochs=epochs), epochs=epochs).settle()
    assert slave.store.tail.raw_end == master.store.log_end
    with caplog.at_level(logging.WARNING):
        Wire(leader, late.follow(epochs=epochs), epochs=epochs).settle()
    assert "move this store away" in caplog.text


def test_a_store_of_another_history_says_what_to_do(
    make: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    master, stranger = make(0, gated=False), make(1, gated=False)
    master.epochs.begin(3, 0)
    master.append(5)
    stranger.append(5, b"z")
    with caplog.at_level(logging.WARNING):
        stranger.store.tail.set_gated(True)
        wire = Wire(master.lead(LOCAL), stranger.follow(epochs=True), epochs=True)
        wire.settle()
        assert wire.closed
        assert "never part of a replicated set" in caplog.text
        stranger.epochs.begin(2, 50)
        wire = Wire(master.lead(LOCAL), stranger.follow(epochs=True), epochs=True)
        wire.settle()
    assert "nothing in common" in caplog.text
    assert stranger.cuts == []


def test_a_master_that_was_replaced_is_not_followed(
    make: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    master, node = make(0, gated=False), make(1)
    master.epochs.begin(3, 0)
    node.epochs.begin(4, 0)
    with caplog.at_level(logging.WARNING):
        wire = Wire(master.lead(LOCAL), node.follow(epochs=True), epochs=True)
        wire.settle()
    assert wire.closed
    assert "it was replaced" in caplog.text


def test_a_majority_confirms_and_nobody_reads_before(make: MakeNode) -> None:
    master, one, two = make(0), make(1), make(2)
    master.epochs.begin(1, 0)
    leader = master.lead(MAJORITY, frozenset((0, 1)))
    wires = [Wire(leader, node.follow(epochs=True), epochs=True) for node in (one, two)]
    told: list[OnelogError | None] = []
    end = master.append(5)
    leader.when_replicated(end, told.append)
    leader.appended()
    wires[1].settle()
    assert (entries(master), told) == (0, [])
    wires[0].settle()
    assert (entries(master), told) == (5, [None])
    assert master.confirmed == [end]
    assert entries(one) == 0
    leader.tick()
    wires[0].settle()
    assert entries(one) == 5


def test_a_new_member_is_waited_for_from_its_proposal_on(make: MakeNode) -> None:
    master, one, two = make(0), make(1), make(2)
    master.epochs.begin(1, 0)
    leader = master.lead(MAJORITY, frozenset((0, 1)))
    wires = [Wire(leader, node.follow(epochs=True), epochs=True) for node in (one, two)]
    for wire in wires:
        wire.settle()
    assert master.proposals == [frozenset((0, 1, 2))]
    end = master.append(1)
    leader.appended()
    wires[0].settle()
    assert master.store.confirmed < end
    wires[1].settle()
    assert master.store.confirmed == end


def test_a_member_that_is_behind_leaves_the_set_and_only_then_is_not_waited_for(
    make: MakeNode,
) -> None:
    master, one, two = make(0), make(1), make(2)
    master.epochs.begin(1, 0)
    leader = master.lead(MAJORITY, frozenset((0, 1, 2)))
    wires = [Wire(leader, node.follow(epochs=True), epochs=True) for node in (one, two)]
    for wire in wires:
        wire.settle()
    end = master.append(1)
    leader.appended()
    wires[0].settle()
    master.clock.advance(2_001)
    leader.tick()
    assert master.store.confirmed < end
    assert master.proposals == [frozenset((0, 1))]
    accept(leader, master)
    assert master.store.confirmed == end
    wires[1].settle()
    assert master.proposals == [frozenset((0, 1, 2))]


def test_fewer_than_a_majority_confirm_nothing_and_keep_their_candidates(make: MakeNode) -> None:
    master, one = make(0), make(1)
    master.epochs.begin(1, 0)
    leader = master.lead(MAJORITY, frozenset((0, 1)))
    wire = Wire(leader, one.follow(epochs=True), epochs=True)
    wire.settle()
    leader.tick()
    assert leader.available(0)
    wire.cut()
    end = master.append(1)
    leader.appended()
    master.clock.advance(2_001)
    leader.tick()
    assert master.proposals == []
    assert not leader.available(0)
    assert master.store.confirmed < end


def test_followers_that_fall_silent_are_gone_also_if_nothing_new_is_written(make: MakeNode) -> None:
    master, one, two = make(0), make(1), make(2)
    master.epochs.begin(1, 0)
    leader = master.lead(MAJORITY, frozenset((0, 1, 2)))
    for node in (one, two):
        Wire(leader, node.follow(epochs=True), epochs=True).settle()
    for passed_ms in range(0, 2_001, 100):
        leader.tick()
        assert leader.available(0), passed_ms
        master.clock.advance(100)
    master.clock.advance(700)  # The time in which they would have reported.
    leader.tick()
    assert not leader.available(0)


def test_a_fenced_leader_acknowledges_nothing(make: MakeNode) -> None:
    master, one = make(0), make(1)
    master.epochs.begin(1, 0)
    leader = master.lead(MAJORITY, frozenset((0, 1)))
    wire = Wire(leader, one.follow(epochs=True), epochs=True)
    wire.settle()
    told: list[OnelogError | None] = []
    end = master.append(1)
    leader.when_replicated(end, told.append)
    leader.appended()
    leader.fence()
    wire.settle()
    assert len(told) == 1
    assert isinstance(told[0], ReplicaTimeoutError)
    assert master.store.confirmed < end
    leader.when_replicated(end, told.append)
    assert isinstance(told[1], NotMasterError)


def test_a_node_that_connects_again_replaces_its_old_connection(make: MakeNode) -> None:
    master, one = make(0, gated=False), make(1)
    master.epochs.begin(1, 0)
    leader = master.lead(LOCAL)
    first = Wire(leader, one.follow(epochs=True), epochs=True)
    first.settle()
    second = Wire(leader, one.follow(epochs=True), epochs=True)
    second.settle()
    assert first.to_follower.closed
    assert len(leader.sessions) == 1


def test_bytes_of_an_older_epoch_are_refused(make: MakeNode) -> None:
    node = make(1)
    follower = node.follow(epochs=True)
    master = make(0, gated=False)
    master.epochs.begin(3, 0)
    master.append(1)
    wire = Wire(master.lead(LOCAL), follower, epochs=True)
    wire.settle()
    end = int(node.store.log_end)
    assert follower.session is not None
    follower.session.received(epoch_ha.encode_header(end, 3, 2, 0, 0) + b"abc")
    assert wire.to_leader.closed
    assert node.store.tail.raw_end == end
