"""`onelog bench`, as people use it; how fast it is, is not what is tested."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE

import pytest

from tests.client.live_cluster import LiveCluster
from tests.client.scripted import knowing, refusing, route_data, scripted
from tests.commands.conftest import Run
from tests.commands.running import run_beside
from tests.waiting import eventually

QUICK = ("bench", "--seconds", "0.3", "-c", "4", "--queues", "2", "--json")


async def names(cluster: LiveCluster) -> list[str]:
    """The user's topics, and all groups."""
    async with cluster.admin() as admin:
        topics = [each.name for each in await admin.topics.names()]
        groups = list((await admin.groups.names()).answers)
    return [name for name in topics + groups if "bench" in name or name == "orders"]


@pytest.mark.parametrize("mode", ["send", "oneway", "batch", "roundtrip"])
async def test_what_is_counted_is_what_was_stored_and_nothing_is_left(
    onelog: Run, cluster: LiveCluster, mode: str
) -> None:
    ended = await onelog(*QUICK, "--mode", mode, "--size", "64")
    assert (ended.code, ended.err) == (0, "")
    found = ended.document
    assert (found["mode"], found["size"], found["processes"]) == (mode, 64, 1)
    assert (found["failed"], found["error"]) == (0, None)
    assert found["messages"] == found["stored"] > 0
    assert found["per_second"] == pytest.approx(found["messages"] / found["seconds"], rel=0.02)
    assert found["client_cpu_us"] > 0
    if mode == "oneway":
        assert found["latency_ms"] is None
    else:
        latency = found["latency_ms"]
        assert 0 < latency["p50"] <= latency["p90"] <= latency["p99.9"] <= latency["max"]
    assert await names(cluster) == []


async def test_consumers_in_several_processes_share_a_backlog(
    onelog: Run, cluster: LiveCluster
) -> None:
    ended = await onelog(
        *("bench", "-m", "consume", "--seconds", "20", "--backlog", "500", "-p", "2", "--json")
    )
    assert (ended.code, ended.err) == (0, "")
    found = ended.document
    assert found["processes"] == 2
    # Whoever joins second takes over queues, and may hear again what was not committed yet.
    assert 500 <= found["messages"] <= 1000
    assert (found["latency_ms"], found["stored"]) == (None, None)
    assert await names(cluster) == []


async def test_a_topic_of_the_users_own_stays(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    ended = await onelog(*QUICK, "--topic", "orders")
    assert (ended.code, ended.document["topic"]) == (0, "orders")
    assert ended.document["stored"] is None
    assert await names(cluster) == ["orders"]


async def test_a_table_for_people(onelog: Run, cluster: LiveCluster) -> None:
    ended = await onelog("bench", "--seconds", "0.2", "-c", "2", "--size", "10")
    assert ended.code == 0
    for text in ("messages of 10 bytes", "by one process", "messages/s", "latency", "p99.9"):
        assert text in ended.out


async def test_failures_are_counted_and_the_first_is_told() -> None:
    async with scripted(refusing(1, "disk is full")) as broker:
        routes = {"orders": route_data({"broker-a": broker.address})}
        async with scripted(knowing(routes)) as nameserver:
            ended = await run_beside(*QUICK, "-t", "orders", "-n", str(nameserver.address))
    assert ended.code == 2
    assert "disk is full" in ended.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-m", "roundtrip", "--size", "8"), "16 bytes or more"),
        (("-n", "127.0.0.1:1"), "no connection to 127.0.0.1:1"),
    ],
)
async def test_what_cannot_be_measured_is_told(
    onelog: Run, arguments: tuple[str, ...], told: str
) -> None:
    ended = await onelog(*QUICK, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err


async def test_ctrl_c_leaves_nothing_behind(cluster: LiveCluster) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onelog", "bench", "--seconds", "600", "-n", cluster.addresses),
        stdout=PIPE,
        stderr=PIPE,
    )

    async def is_sending() -> bool:
        async with cluster.admin() as admin:
            for topic in await names(cluster):
                if sum(queue.count for queue in (await admin.topics.status(topic)).queues) > 1000:
                    return True
        return False

    await eventually(is_sending, "messages")
    program.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(program.communicate(), 60)
    assert (program.returncode, out, err) == (130, b"", b"")
    assert await names(cluster) == []
