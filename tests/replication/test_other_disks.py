"""Nodes that come back with another disk, or in doubt, and an etcd that has lost its data."""

import shutil

import pytest

from onelog.replication.identity import FILE
from onelog.replication.registry import Put, Request, encode
from tests.replication.elections import LEASE_MS, FakeNode, World, started


@pytest.fixture
def world() -> World:
    return World()


def stop_all(world: World) -> None:
    for node in world.nodes.values():
        node.alive = False
    world.time.run(LEASE_MS * 2)


def written(world: World, end: int) -> None:
    """As if all nodes had so much of the log, and the registry had been told."""
    for node in world.nodes.values():
        node.end, node.epoch = end, world.state().epoch
    world.time.run(LEASE_MS)


def replaced(world: World, number: int) -> FakeNode:
    """The node starts with an empty disk."""
    world.nodes[number].folder = world.nodes[number].disk()
    return world.start(number, end=0, epoch=0)


def test_a_node_with_an_empty_disk_is_not_elected_though_it_comes_back_first(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    started(world)
    written(world, 1_000)
    stop_all(world)
    replaced(world, 1)
    world.time.run(20_000)
    assert world.masters() == []
    assert "node 1 joins as a new member, and is not elected before it has" in caplog.text
    assert "before node 0, node 1 (its store was replaced, or is an old copy), node 2 is" in (
        caplog.text
    )
    assert "`onelog cluster elect N`" in caplog.text
    world.start(2)
    assert world.master().number == 2
    assert set(world.state().in_sync) <= {0, 2}


def test_a_node_with_an_empty_disk_is_not_elected_when_its_master_dies_in_mid_copy(
    world: World,
) -> None:
    world.ack = "majority"
    started(world)
    written(world, 7_000)
    assert world.ask(2, Request("drain")) == ""
    world.nodes[2].alive = False
    world.nodes[1].alive = False
    world.time.run(LEASE_MS * 2)
    copying = replaced(world, 1)
    world.time.run(LEASE_MS)
    copying.end, copying.epoch = 1_720, 1
    world.nodes[0].alive = False
    world.time.run(20_000)
    assert world.masters() == []
    world.start(2)
    world.time.run(20_000)
    assert world.masters() == []
    world.start(0)
    assert world.master().number == 0


def test_a_node_that_was_replaced_is_a_member_when_the_master_has_taken_it_in(
    world: World,
) -> None:
    master = started(world)
    written(world, 1_000)
    world.nodes[1].alive = False
    world.time.run(LEASE_MS * 2)
    known = world.view().members[1]
    node = replaced(world, 1)
    world.time.run(LEASE_MS)
    assert world.state().in_sync == (0, 2)
    assert world.view().nodes[1].new
    assert world.view().members[1] == known  # The former disk may yet come back.
    node.end, node.epoch = 1_000, 1
    master.election.propose_in_sync(frozenset({0, 1, 2}))
    world.time.run(LEASE_MS)
    assert world.state().in_sync == (0, 1, 2)
    assert world.view().members[1].store != known.store
    assert not world.view().nodes[1].new
    for number in (0, 2):
        world.nodes[number].alive = False
    assert world.master().number == 1


def test_the_former_disk_is_the_member_again_while_the_new_one_has_not_caught_up(
    world: World,
) -> None:
    started(world)
    written(world, 1_000)
    former = world.nodes[1].folder
    stop_all(world)
    replaced(world, 1)
    world.time.run(10_000)
    world.nodes[1].alive = False
    world.time.run(LEASE_MS * 2)
    world.nodes[1].folder = former
    world.start(1, end=1_000, epoch=1)
    assert world.master().number == 1


def test_an_old_copy_of_a_disk_is_not_elected(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    started(world)
    written(world, 500)
    node = world.nodes[1]
    copy = node.disk()
    shutil.copytree(node.folder, copy, dirs_exist_ok=True)
    node.alive = False
    world.time.run(LEASE_MS * 2)
    world.start(1)
    world.time.run(LEASE_MS)
    stop_all(world)
    # As long as it should be, and longer: it was started less often than etcd knows.
    world.nodes[1].folder = copy
    world.start(1, end=9_000, epoch=1)
    world.time.run(20_000)
    assert world.masters() == []
    assert "its store is an old copy: of start 1, where start 2 is known" in caplog.text


def test_a_copy_that_lacks_what_was_confirmed_is_not_elected(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    started(world)
    written(world, 1_000)
    stop_all(world)
    world.start(1, end=999, epoch=1)
    world.time.run(20_000)
    assert world.masters() == []
    assert "its store had the log up to 1000, and lacks that now" in caplog.text


def test_the_disk_of_another_node_does_not_make_a_node_that_one(world: World) -> None:
    started(world)
    written(world, 1_000)
    stop_all(world)
    world.nodes[1].folder = world.nodes[2].folder
    world.start(1)
    world.time.run(20_000)
    assert world.masters() == []
    assert world.view().nodes[1].new


def test_doubt_after_a_loss_of_power_does_not_end_with_a_clean_restart(world: World) -> None:
    started(world)
    written(world, 2_000)
    stop_all(world)
    world.start(2, intact=False, end=1_000, epoch=1)
    for _ in range(2):
        world.time.run(10_000)
        world.nodes[2].alive = False
        world.time.run(LEASE_MS * 2)
        world.start(2, clean=True)
    world.time.run(20_000)
    assert world.masters() == []
    world.start(1)
    assert world.master().number == 1


def test_doubt_lasts_until_the_node_is_in_the_set_again(world: World) -> None:
    """Not only until a master has heard of it: it may be anywhere in its copy then."""
    master = started(world)
    written(world, 2_000)
    world.nodes[2].alive = False
    world.time.run(LEASE_MS * 2)
    world.start(2, intact=False, end=1_000)
    world.time.run(LEASE_MS)
    assert world.nodes[2].election.identity.doubt
    assert world.view().nodes[2].intact
    world.nodes[2].alive = False
    world.time.run(LEASE_MS * 2)
    world.start(2, clean=True)
    world.time.run(LEASE_MS)
    assert world.nodes[2].election.identity.doubt
    world.nodes[2].end = 2_000
    master.election.propose_in_sync(frozenset({0, 1, 2}))
    world.time.run(LEASE_MS)
    assert not world.nodes[2].election.identity.doubt


def test_sets_that_are_there_already_are_enrolled_once(world: World) -> None:
    started(world)
    written(world, 1_000)
    stop_all(world)
    for number, node in world.nodes.items():
        world.etcd.keys.pop(f"members/{number}")
        (node.folder / FILE).unlink()
    world.start(1)
    assert world.master().number == 1
    world.time.run(LEASE_MS)
    assert list(world.view().members) == [1]


def test_an_empty_node_of_a_set_from_before_is_a_new_one(world: World) -> None:
    started(world)
    written(world, 1_000)
    stop_all(world)
    for number in range(3):
        world.etcd.keys.pop(f"members/{number}")
    replaced(world, 1)
    world.time.run(20_000)
    assert world.masters() == []


def test_a_new_node_joins_a_set_from_nothing(world: World) -> None:
    master = started(world)
    written(world, 1_000)
    node = world.start(3)
    world.time.run(LEASE_MS)
    assert world.view().nodes[3].new
    assert world.view().nodes[3].intact
    node.end = 1_000
    master.election.propose_in_sync(frozenset({0, 1, 2, 3}))
    world.time.run(LEASE_MS)
    assert world.state().in_sync == (0, 1, 2, 3)
    assert world.view().members[3].confirmed == 1_000


def test_somebody_can_say_that_a_node_is_master_as_it_is(world: World) -> None:
    started(world)
    written(world, 1_000)
    stop_all(world)
    replaced(world, 1)
    world.start(2, intact=False, end=900, epoch=1)
    world.time.run(10_000)
    assert world.masters() == []
    assert world.ask(2, Request("elect")) == ""
    assert world.master().number == 2
    assert (world.state().epoch, world.state().in_sync) == (2, (2,))
    assert world.ask(1, Request("elect")) == "node 2 is the master: nobody is to be elected"


def test_a_word_that_nobody_waits_for_any_more_makes_nobody_master(world: World) -> None:
    started(world)
    written(world, 1_000)
    stop_all(world)
    node = replaced(world, 1)
    world.time.run(1_000)
    world.etcd.write({}, {"requests/1": Put(encode(Request("elect")))})
    world.time.run(20)
    world.etcd.write({}, {"requests/1": None})
    world.time.run(20_000)
    assert world.masters() == []
    assert node.election.role.master is None


def test_a_node_is_told_to_truncate_what_its_master_lacks(world: World) -> None:
    started(world)
    assert world.ask(1, Request("truncate")) == ""
    assert [node.truncates for node in world.nodes.values()] == [False, True, False]


def test_a_drained_node_that_goes_on_after_all_is_taken_in_again(world: World) -> None:
    master = started(world)
    assert world.ask(2, Request("drain")) == ""
    assert world.state().in_sync == (0, 1)
    master.election.propose_in_sync(frozenset({0, 1, 2}))
    world.time.run(1_000)
    assert world.state().in_sync == (0, 1)
    assert world.ask(2, Request("join")) == ""
    world.time.run(1_000)
    master.election.propose_in_sync(frozenset({0, 1, 2}))
    world.time.run(1_000)
    assert world.state().in_sync == (0, 1, 2)


# -- an etcd that has lost its data --------------------------------------------------------------


def test_a_set_goes_on_without_a_restart_when_etcd_has_lost_its_data(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    master = started(world)
    written(world, 1_000)
    world.nodes[2].end = 1_500
    epoch = world.state().epoch
    world.etcd.lose_all()
    world.time.run_until(lambda: world.masters() == [])
    assert world.master().number == 2
    assert (world.state().epoch, world.state().in_sync) == (epoch + 1, (2,))
    world.time.run(LEASE_MS)
    assert master.election.role.master == 2
    assert caplog.text.count("it has lost its data, or is another one") == 3
    world.time.run(LEASE_MS)
    assert sorted(world.view().members) == [0, 1, 2]


def test_an_etcd_that_has_as_many_revisions_again_has_forgotten_the_set_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Other sets, which register there anew, too."""
    started(world)
    written(world, 1_000)
    revision = world.etcd.revision
    world.etcd.lose_all()
    world.etcd.revision = revision + 500
    world.time.run_until(lambda: world.masters() == [])
    world.master()
    world.time.run(LEASE_MS)
    assert world.state().epoch == 2
    assert caplog.text.count("it has lost its data, or is another one") == 3


def test_without_all_its_nodes_a_set_that_etcd_has_forgotten_has_no_master(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    started(world)
    written(world, 1_000)
    world.nodes[2].alive = False
    world.time.run(LEASE_MS * 2)
    world.etcd.lose_all()
    world.time.run(20_000)
    assert world.masters() == []
    assert "whose last epoch was 1: a master is elected when all 3 nodes are there" in caplog.text
    world.start(2)
    assert world.master().number in (0, 1)


def test_a_set_in_which_nothing_was_ever_written_begins_anew_when_all_its_nodes_are_there(
    world: World,
) -> None:
    started(world)
    stop_all(world)
    world.etcd.lose_all()
    world.start(0)
    world.start(1)
    world.time.run(10_000)
    assert world.masters() == []
    world.start(2)
    assert world.master()
    assert world.state().epoch == 2


def test_without_all_its_nodes_somebody_may_say_who_is_master(world: World) -> None:
    started(world)
    written(world, 1_000)
    world.nodes[2].alive = False
    world.time.run(LEASE_MS * 2)
    world.etcd.lose_all()
    world.time.run(10_000)
    assert world.ask(1, Request("elect")) == ""
    assert world.master().number == 1
    assert world.state().epoch == 2


def test_an_empty_node_founds_no_set_that_etcd_has_forgotten(world: World) -> None:
    started(world)
    written(world, 1_000)
    stop_all(world)
    world.etcd.lose_all()
    replaced(world, 0)
    for number in (1, 2):
        world.start(number)
    world.time.run(20_000)
    assert world.masters() == []


def test_an_etcd_that_was_restored_from_an_old_copy_makes_no_former_master_one(
    world: World,
) -> None:
    started(world)
    written(world, 1_000)
    keys, leases, revision = dict(world.etcd.keys), dict(world.etcd.leases), world.etcd.revision
    assert world.ask(0, Request("hand over", 1)) == ""
    world.time.run(LEASE_MS)
    for node in world.nodes.values():
        node.end, node.epoch = 1_500, 2
    world.time.run(LEASE_MS)
    world.etcd.lose_all()
    world.etcd.keys, world.etcd.leases = keys, leases
    world.etcd.revision = revision
    assert world.master()
    world.time.run(LEASE_MS * 4)
    assert world.master()
    assert world.state().epoch == 3
