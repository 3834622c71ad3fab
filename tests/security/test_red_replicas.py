"""Attacks on sets of replicas: by who says that it is a master, a follower, a member, or etcd."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.config import ReplicationConfig
from onelog.errors import RegistryError
from onelog.message import LogOffset
from onelog.replication.identity import FILE, Identity
from onelog.replication.registry import (
    MemberEntry,
    Put,
    Request,
    Snapshot,
    view_of,
)
from onelog.replication.roles import Role
from onelog.wire.replication import epoch_ha
from tests.replication.elections import LEASE_MS, World, started
from tests.replication.test_replica import World as OneNode
from tests.replication.test_replica import confirmed_set, connect, follower_of, in_sync, master_of
from tests.replication.wired import STORE, MemoryLink
from tests.replication.wired import Node as Wired

Make = Callable[..., OneNode]
MAJORITY = ReplicationConfig(ack="majority", replicas=3)
LOCAL = ReplicationConfig(replicas=3)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    nodes: dict[int, OneNode] = {}

    def made(number: int, config: ReplicationConfig | None = None) -> OneNode:
        folder = tmp_path / str(number)
        nodes[number] = OneNode(folder, number, config) if config else OneNode(folder, number)
        return nodes[number]

    yield made
    for each in nodes.values():
        each.replica.close()
        each.store.close()


@pytest.fixture
def world() -> World:
    return World()


def content(node: OneNode) -> bytes:
    return bytes(node.store.tail.read_raw(0, node.store.log_end))


class Liar:
    """Somebody who says that it is the master of a node that has a confirmed log."""

    def __init__(self, make: Make) -> None:
        _, self.node, self.end = confirmed_set(make)
        self.before = content(self.node)
        self.node.replica.become(follower_of(7, 9), in_sync(7))
        self.link = MemoryLink()
        self.session = self.node.replica.dialed(self.link, "liar:1")

    def says(self, *parts: bytes) -> None:
        for part in parts:
            if not self.link.closed:
                self.session.received(part)

    def has_changed_nothing(self) -> bool:
        store = self.node.store
        return store.log_end == store.confirmed == self.end and content(self.node) == self.before


HISTORIES = {
    "nothing at all": (0, 0, []),
    "an epoch that begins now": (0, 9, [(9, 0)]),
    "an epoch that begins later, with a long log": (1 << 40, 9, [(9, 0)]),
    "the same epoch from elsewhere": (1 << 40, 1, [(1, 10)]),
    "the same epoch, cut short": (5, 9, [(1, 0), (9, 5)]),
    "the same epoch, of which it has nothing": (0, 9, [(1, 0), (9, 0)]),
    "a log that ends before it begins": (0, 9, [(1, 0), (9, 1 << 40)]),
    "an older epoch": (1 << 40, 0, [(0, 0)]),
    "epochs in no order": (1 << 40, 9, [(9, 0), (1, 0), (5, 3)]),
    "the greatest epochs that there are": (1, (1 << 31) - 1, [((1 << 31) - 1, 0)]),
}


@pytest.mark.parametrize("which", HISTORIES)
def test_no_history_of_a_false_master_cuts_what_is_confirmed(make: Make, which: str) -> None:
    liar = Liar(make)
    end, epoch, epochs = HISTORIES[which]
    liar.says(epoch_ha.encode_history(end, epoch, epochs))
    assert liar.has_changed_nothing()


def test_a_false_master_that_sends_other_bytes_for_known_ones_changes_nothing(make: Make) -> None:
    liar = Liar(make)
    liar.says(
        epoch_ha.encode_history(1 << 20, 9, [(1, 0)]),
        epoch_ha.encode_header(1, liar.end - 1, 1, 0, 1 << 20) + bytes(liar.end - 1),
    )
    assert liar.has_changed_nothing()
    assert liar.link.closed


def test_a_false_master_that_sends_bytes_without_a_history_changes_nothing(make: Make) -> None:
    liar = Liar(make)
    liar.says(epoch_ha.encode_header(0, 4, 9, 0, 4) + b"evil")
    assert liar.has_changed_nothing()
    assert liar.link.closed


def test_a_false_master_that_sends_its_history_twice_changes_nothing(make: Make) -> None:
    liar = Liar(make)
    true = epoch_ha.encode_history(liar.end, 1, [(1, 0)])
    liar.says(true, epoch_ha.encode_history(0, 9, [(9, 0)]))
    assert liar.has_changed_nothing()
    assert liar.link.closed


def test_a_false_master_confirms_nothing_that_is_not_there(make: Make) -> None:
    liar = Liar(make)
    liar.says(
        epoch_ha.encode_history(liar.end, 1, [(1, 0)]),
        epoch_ha.encode_header(liar.end, 0, 1, 0, 1 << 40),
    )
    liar.node.run(1_000)
    assert liar.has_changed_nothing()


@pytest.mark.parametrize("offset", [1 << 62, 64 << 10, -1])
def test_a_false_master_leaves_no_gap_in_the_log(make: Make, offset: int) -> None:
    liar = Liar(make)
    liar.says(
        epoch_ha.encode_history(1 << 40, 1, [(1, 0)]),
        epoch_ha.encode_header(offset, 4, 1, 0, 0) + b"evil",
    )
    assert liar.has_changed_nothing()
    assert liar.link.closed


def test_a_hundred_false_masters_in_a_row_change_nothing(make: Make) -> None:
    liar = Liar(make)
    for epoch in range(2, 102):
        liar.session = liar.node.replica.dialed(MemoryLink(), "liar:1")
        liar.session.received(epoch_ha.encode_history(0, epoch, [(epoch, 0)]))
    assert liar.has_changed_nothing()
    assert not (liar.node.store.folder / "onelog-cut").exists()


# -- followers that lie --------------------------------------------------------------------------


class Follower:
    """Somebody who says that it is a follower."""

    def __init__(self, master: Wired, config: ReplicationConfig, *members: int) -> None:
        self.leader = master.lead(config, frozenset(members))
        self.link = MemoryLink()
        self.session = self.leader.connected(self.link, "liar:1", epochs=True)

    def says(self, node: int, *offsets: int) -> None:
        words = [epoch_ha.encode_greeting(epoch_ha.Greeting(node))]
        words += [epoch_ha.encode_report(offset) for offset in offsets]
        self.session.received(b"".join(words))


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Wired]:
    node = Wired(tmp_path / "master", 0, gated=True)
    node.epochs.begin(1, 0)
    node.append(20)
    yield node
    node.store.close()


def test_a_follower_cannot_say_that_it_has_what_it_was_never_sent(master: Wired) -> None:
    liar = Follower(master, MAJORITY, 0, 1)
    end = int(master.store.log_end)
    master.append(20)  # Of which it has been sent nothing.
    liar.says(1, 0, int(master.store.log_end) + 1)
    assert liar.link.closed
    assert master.store.confirmed < end


def test_a_follower_cannot_say_that_it_is_the_master(master: Wired) -> None:
    liar = Follower(master, MAJORITY, 0, 1)
    liar.says(0, 0, int(master.store.log_end))
    assert liar.link.closed
    assert master.store.confirmed == 0


def test_a_stranger_that_has_everything_confirms_nothing_in_place_of_a_member(
    master: Wired,
) -> None:
    liar = Follower(master, MAJORITY, 0, 1)
    end = int(master.store.log_end)
    liar.says(99, end, end)
    assert master.store.confirmed == 0


def test_a_stranger_that_etcd_does_not_know_is_not_taken_into_the_set(world: World) -> None:
    first = started(world)
    first.election.propose_in_sync(frozenset({0, 1, 2, 99}))
    world.time.run(LEASE_MS)
    assert world.state().in_sync == (0, 1, 2)


def test_a_member_that_comes_back_with_nothing_is_not_in_sync_by_what_it_had(
    master: Wired,
) -> None:
    """Also where nothing has to be confirmed: it had all a moment ago."""
    end = int(master.store.log_end)
    liar = Follower(master, LOCAL, 0)
    liar.leader._began = LogOffset(0)
    liar.says(1, end, end)
    assert liar.leader.keeps_up(1)
    liar.session.lost()
    liar.session = liar.leader.connected(MemoryLink(), "liar:1", epochs=True)
    liar.says(1, 0, 0)
    assert not liar.leader.keeps_up(1)


# -- disks that lie ------------------------------------------------------------------------------


def full_stop(world: World) -> None:
    for node in world.nodes.values():
        node.end, node.epoch = 1_000, 1
    world.time.run(LEASE_MS)
    for node in world.nodes.values():
        node.alive = False
    world.time.run(2 * LEASE_MS)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("end", [0, 999, 1_000, 5_000])
def test_a_disk_with_anything_on_it_is_not_the_member_that_had_another(
    world: World, first: int, end: int
) -> None:
    started(world)
    full_stop(world)
    world.nodes[first].folder = world.nodes[first].disk()
    world.start(first, end=end, epoch=1 if end else 0)
    world.time.run(4 * LEASE_MS)
    assert world.masters() == []


def test_empty_disks_everywhere_found_no_second_set(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    started(world)
    full_stop(world)
    for number in range(3):
        world.nodes[number].folder = world.nodes[number].disk()
        world.start(number, end=0, epoch=0)
    world.time.run(10 * LEASE_MS)
    assert world.masters() == []
    assert "no master can be elected before node 0 (its store was replaced" in caplog.text


def test_two_new_disks_do_not_outvote_the_member_that_has_everything(world: World) -> None:
    started(world)
    full_stop(world)
    for number in (0, 1):
        world.nodes[number].folder = world.nodes[number].disk()
        world.start(number, end=9_999, epoch=9)
    world.start(2)
    assert world.master().number == 2


def test_a_counter_of_starts_that_was_raised_does_not_make_a_copy_whole(
    world: World,
) -> None:
    """Who edits the file gets past the counter, and not past what is known to be confirmed."""
    started(world)
    copy = world.nodes[1].disk()
    shutil.copytree(world.nodes[1].folder, copy, dirs_exist_ok=True)
    full_stop(world)
    text = (copy / FILE).read_text()
    assert '"start":1' in text
    (copy / FILE).write_text(text.replace('"start":1', '"start":99'))
    world.nodes[1].folder = copy
    world.start(1, end=500, epoch=1)
    world.time.run(4 * LEASE_MS)
    assert world.masters() == []


def test_doubt_that_was_deleted_with_its_file_makes_a_new_member(world: World) -> None:
    started(world)
    full_stop(world)
    world.start(1, intact=False)
    world.time.run(LEASE_MS)
    world.nodes[1].alive = False
    world.time.run(2 * LEASE_MS)
    (world.nodes[1].folder / FILE).unlink()
    world.start(1)
    world.time.run(4 * LEASE_MS)
    assert world.masters() == []


@pytest.mark.parametrize("start", [-1, 1 << 80, "1e999"])
def test_a_file_with_an_absurd_number_of_starts_is_no_reason_to_fail(
    tmp_path: Path, start: object
) -> None:
    Identity(1, tmp_path)
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text.replace('"start":1', f'"start":{start}'))
    found = Identity(1, tmp_path)
    known = MemberEntry("another", 1)
    assert found.why_new(known)


# -- an etcd that lies ---------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["members/", "members/x", "nodes/-1", "progress/1.5", "x/1", "x"])
def test_a_foreign_key_among_those_of_a_set_does_not_stop_it(world: World, key: str) -> None:
    started(world)
    world.etcd.write({}, {key: Put(b"?")})
    world.nodes[0].alive = False
    world.time.run(LEASE_MS)
    assert world.master().number in (1, 2)


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"store":1,"start":2}', b"\xff"])
def test_a_member_that_cannot_be_read_is_an_error_with_its_key(world: World, value: bytes) -> None:
    started(world)
    world.etcd.write({}, {"members/1": Put(value)})
    found: Snapshot = world.etcd.read()
    with pytest.raises(RegistryError, match="members/1"):
        view_of(found)


def test_a_request_to_elect_a_second_master_is_refused(world: World) -> None:
    started(world)
    assert "node 0 is the master" in world.ask(1, Request("elect"))
    assert world.masters() == [0]


def test_an_etcd_that_forgets_again_and_again_makes_no_two_masters(world: World) -> None:
    started(world)
    for node in world.nodes.values():
        node.end = 1_000
    for wait_ms in (10, 300, 900, 2_000, 5_000, 20, 700):
        world.etcd.lose_all()
        end = world.time.now_ms + wait_ms
        while world.time.now_ms < end:
            world.time.run(5)
            assert len(world.masters()) <= 1
    world.master()


def test_an_old_etcd_does_not_bring_back_a_master_of_an_epoch_that_is_over(world: World) -> None:
    started(world)
    keys, leases, revision = dict(world.etcd.keys), dict(world.etcd.leases), world.etcd.revision
    assert world.ask(0, Request("hand over", 2)) == ""
    for node in world.nodes.values():
        node.epoch = 2
    world.time.run(LEASE_MS)
    world.etcd.keys, world.etcd.leases, world.etcd.revision = keys, leases, revision
    end = world.time.now_ms + 6 * LEASE_MS
    while world.time.now_ms < end:
        world.time.run(10)
        assert len(world.masters()) <= 1
        assert all(world.nodes[each].epoch != 1 for each in world.masters())
    assert world.state().epoch > 2


def test_a_role_of_nobody_takes_no_follower(make: Make) -> None:
    node = make(3)
    node.replica.become(Role(), in_sync())
    link = MemoryLink()
    node.replica.accepted(link, "liar:1").received(epoch_ha.encode_greeting(epoch_ha.Greeting(1)))
    assert link.closed


# -- disks that are full -------------------------------------------------------------------------


def test_a_full_disk_does_not_make_a_cut_that_keeps_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = confirmed_set(make)
    one.write(b"only here")
    before = content(one)
    two.replica.become(master_of(2, 1), in_sync(0, 1, revision=2))
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=0))
    for _ in range(3):
        one.replica.become(follower_of(1, 2), in_sync(0, 1, revision=2))
        connect(two, one)
        assert content(one) == before


def test_a_cut_of_more_segments_than_are_kept_keeps_all_of_them(tmp_path: Path) -> None:
    small = dataclasses.replace(STORE, segment_bytes=8 << 10)
    node = Wired(tmp_path, 0, gated=False, store=small)
    node.append(1_600)
    segments = len(node.store.log.segments)
    assert segments > 110
    node.store.tail.set_gated(True)
    found = node.store.tail.cut(0, "a test")
    assert len(found.kept) == segments
    assert all(path.exists() for path in found.kept)
    node.store.close()
