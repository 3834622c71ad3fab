"""Real brokers and a real etcd on loopback: plugs are pulled, and nothing acknowledged is lost."""

import signal
import time

from tests.replication.live import LiveSet, sending
from tests.waiting import eventually


async def test_another_node_goes_on_when_the_master_is_killed(live: LiveSet) -> None:
    async with sending(live):
        for _ in range(2):
            master = await live.master()
            live.signal(master, signal.SIGKILL)
            live.end(master)
            began = time.monotonic()
            await live.another_master_than(master)
            assert time.monotonic() - began < 10  # 3.5 s where nothing else runs.
            await live.sends()
            live.start(master)
            await live.in_sync(0, 1, 2)
        await live.sends()
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_a_master_that_is_stopped_for_a_while_is_no_master_when_it_wakes(
    live: LiveSet,
) -> None:
    async with sending(live):
        master = await live.master()
        live.signal(master, signal.SIGSTOP)
        await live.another_master_than(master)
        await live.sends()
        live.signal(master, signal.SIGCONT)
        await live.in_sync(0, 1, 2)
        assert await live.master() != master
        await live.sends()
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_without_etcd_writes_end_with_the_lease_and_reads_go_on(live: LiveSet) -> None:
    async with sending(live):
        live.etcd.stop()

        def is_fenced() -> bool:
            return "cannot prove its lease" in (live.folder / "0.log").read_text()

        await eventually(is_fenced)
        before = list(live.acknowledged)
        # A follower does not know of the last ones that they are confirmed; a new master will.
        read = await live.read_all(before[: len(before) // 2])
        assert set(before[: len(before) // 2]) <= set(read)
        assert live.acknowledged == before
        live.etcd.start()
        await live.sends()
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_what_people_ask_of_a_set_is_done(live: LiveSet) -> None:
    async with sending(live):
        ended = await live.onelog("cluster", "promote", "2")
        assert (ended.code, ended.err) == (0, "")
        assert "node 2 is the master of epoch 2" in ended.out
        await live.sends()
        ended = await live.onelog("cluster", "demote", "--json")
        assert ended.document["epoch"] == 3
        assert ended.document["master"] != 2
        assert ended.document["seconds"] < 2
        await live.sends()
        ended = await live.onelog("cluster", "promote", "7")
        assert (ended.code, ended.err) == (2, "onelog: node 7 is not in sync\n")

        master = await live.master()
        ended = await live.onelog("cluster", "drain", str(master))
        assert (ended.code, ended.err) == (0, "")
        assert f"node {master} can be stopped" in ended.out
        live.signal(master, signal.SIGTERM)
        live.end(master)
        await live.sends()

        live.start(master)
        await live.in_sync(0, 1, 2)  # It is counted only if it is there.
        live.start(3)
        ended = await live.onelog("cluster", "join", "3", "--json")
        assert ended.document["replicas"] == 4
        await live.in_sync(0, 1, 2, 3)
        await live.sends()
        shown = await live.onelog("cluster", "status")
        assert "in sync 0, 1, 2, 3 of 4" in shown.out
        brokers = (await live.onelog("cluster", "status", "--json")).document
        assert [each["replica"]["role"] for each in brokers].count("master") == 1
        assert {each["replica"]["node"] for each in brokers} == {0, 1, 2, 3}
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_nodes_can_be_restarted_one_after_the_other_under_load(live: LiveSet) -> None:
    async with sending(live):
        for number in (2, 1, 0):
            live.signal(number, signal.SIGTERM)
            live.end(number)
            assert live.processes[number].returncode == 0
            await live.sends()
            live.start(number)
            await live.in_sync(0, 1, 2)
    assert set(live.acknowledged) <= set(await live.read_all())
