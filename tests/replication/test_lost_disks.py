"""Real brokers and a real etcd: disks are replaced, power is lost, and etcd forgets everything."""

import asyncio
import shutil
import signal
from pathlib import Path

from onelog.replication.identity import FILE, boot_id
from tests.replication.live import LiveSet, sending

QUIET_SECONDS = 8.0
"""Longer than an election takes."""


def stop_all(live: LiveSet) -> None:
    for number in live.processes:
        live.signal(number, signal.SIGKILL)
    for number in live.processes:
        live.end(number)


def folder(live: LiveSet, number: int) -> Path:
    return live.folder / f"store-{number}"


def log_of(live: LiveSet, number: int) -> str:
    return (live.folder / f"{number}.log").read_text()


def rewrite(live: LiveSet, number: int, old: str, new: str) -> None:
    """Change what a node's folder says of it."""
    file = folder(live, number) / FILE
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


async def stays_without_a_master(live: LiveSet) -> None:
    await live.eventually(lambda view: view.master is None, "the old master should be gone")
    await live.eventually(lambda view: len(view.nodes) == 1, "one node should be there")
    await asyncio.sleep(QUIET_SECONDS)
    assert (await live.view()).master is None


async def test_an_empty_disk_that_comes_back_first_does_not_empty_the_others(
    live: LiveSet,
) -> None:
    async with sending(live):
        await live.sends()
    stop_all(live)
    shutil.rmtree(folder(live, 1))
    live.start(1)
    await stays_without_a_master(live)
    assert "node 1 joins as a new member, and is not elected before" in log_of(live, 1)
    assert "no master can be elected before" in log_of(live, 1)
    live.start(0)
    live.start(2)
    await live.in_sync(0, 1, 2)
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_an_old_copy_of_a_disk_that_comes_back_first_does_not_cut_the_others(
    live: LiveSet,
) -> None:
    async with sending(live):
        live.signal(1, signal.SIGTERM)
        live.end(1)
        shutil.copytree(folder(live, 1), live.folder / "copy")
        live.start(1)
        await live.in_sync(0, 1, 2)
        await live.sends()
    stop_all(live)
    shutil.rmtree(folder(live, 1))
    shutil.move(live.folder / "copy", folder(live, 1))
    live.start(1)
    await stays_without_a_master(live)
    assert "its store is an old copy" in log_of(live, 1)
    live.start(0)
    live.start(2)
    await live.in_sync(0, 1, 2)
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_a_doubtful_node_that_is_restarted_cleanly_waits_for_the_others_all_the_same(
    live: LiveSet,
) -> None:
    async with sending(live):
        await live.sends()
    stop_all(live)
    # As after a loss of power: the boot is another one, and it was not stopped cleanly.
    rewrite(live, 1, boot_id(), "another boot")
    live.start(1)
    await stays_without_a_master(live)
    live.signal(1, signal.SIGTERM)
    live.end(1)
    assert live.processes[1].returncode == 0
    live.start(1)
    await stays_without_a_master(live)
    live.start(0)
    live.start(2)
    await live.in_sync(0, 1, 2)
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_a_set_goes_on_without_a_restart_when_etcd_has_lost_its_data(live: LiveSet) -> None:
    async with sending(live):
        live.etcd.lose_all()
        view = await live.eventually(
            lambda view: view.master is not None and view.state is not None,
            "there should be a master again",
        )
        assert view.state is not None
        assert view.state.epoch > 1
        await live.sends()
        await live.in_sync(0, 1, 2)
    assert all("it has lost its data, or is another one" in log_of(live, each) for each in range(3))
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_a_set_in_which_nothing_was_written_starts_again_after_a_full_stop(
    live: LiveSet,
) -> None:
    stop_all(live)
    for number in (2, 1, 0):
        live.start(number)
    await live.eventually(
        lambda view: view.state is not None and view.state.epoch > 1 and view.master is not None,
        "there should be a master again",
    )
    await live.in_sync(0, 1, 2)


async def test_people_can_go_on_with_what_is_left(live: LiveSet) -> None:
    async with sending(live):
        await live.sends()
    stop_all(live)
    shutil.rmtree(folder(live, 0))
    shutil.rmtree(folder(live, 2))
    rewrite(live, 1, '"doubt":""', '"doubt":"nobody knows"')
    for number in range(3):
        live.start(number)
    await live.eventually(lambda view: len(view.nodes) == 3, "all nodes should be there")
    await asyncio.sleep(QUIET_SECONDS)
    assert (await live.view()).master is None
    words = ("cluster", "elect", "1", "--etcd", live.etcd.address)
    ended = await live.onelog(*words)
    assert ended.code == 2
    assert "nobody to ask, nothing was done: say --yes" in ended.err
    for _ in range(5):  # A busy machine may let a lease end; nothing is lost by asking again.
        ended = await live.onelog(*words, "--yes")
        if ended.code == 0:
            break
    assert (ended.code, ended.err) == (0, "")
    assert "node 1 is the master of epoch 2" in ended.out
    await live.in_sync(0, 1, 2)
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_a_drained_node_can_join_again_without_a_restart(live: LiveSet) -> None:
    async with sending(live):
        ended = await live.onelog("cluster", "drain", "2")
        assert (ended.code, ended.err) == (0, "")
        await live.in_sync(0, 1)
        ended = await live.onelog("cluster", "join", "2")
        assert ended.code == 0
        assert "node 2 is in sync; the set has 3 nodes" in ended.out
        await live.in_sync(0, 1, 2)
