"""`onelog group`, as people use it."""

import asyncio
import json
import signal
import sys
from dataclasses import replace

import pytest

from onelog.client.admin.groups import (
    GroupMembers,
    GroupProgress,
    GroupSummary,
    Move,
    Moves,
    QueueProgress,
)
from onelog.clock import SystemClock
from onelog.commands.group import effect, show_summaries
from onelog.commands.terminal import console
from onelog.core.queues.retry_policy import parse_policy
from tests.client.admin.test_groups import commit
from tests.client.live_cluster import LiveCluster
from tests.commands.conftest import Run


async def filled(cluster: LiveCluster, count: int = 5) -> None:
    await cluster.create_topic("orders", 2)
    for number in range(count):
        await cluster.send("orders", b"%d" % number)


def positions(cluster: LiveCluster, group: str) -> dict[int, int]:
    return cluster.brokers[0].core.offsets.of(group, "orders")


async def test_create_update_describe_and_delete(onelog: Run, cluster: LiveCluster) -> None:
    ended = await onelog("group", "create", "readers", "--retries", "3", "--orderly")
    assert (ended.code, ended.out, ended.err) == (0, "readers: created on broker-a\n", "")
    groups = cluster.brokers[0].core.groups
    groups.put(replace(groups.require("readers"), attributes={"priority.factor": "50"}))
    ended = await onelog("group", "update", "readers", "--disable", "--json")
    assert ended.document == {"group": "readers", "changed_on": ["broker-a"]}
    (settings,) = (await onelog("group", "describe", "readers", "--json")).document["settings"]
    assert settings == {
        "broker": "broker-a",
        "consume_enable": False,
        "broadcast_enable": True,
        "orderly": True,
        "retry_queues": 1,
        "retry_times_max": 3,
        "consume_timeout_minutes": 15,
        "attributes": {"priority.factor": "50"},
        "retry_policy": {"type": "CUSTOMIZED"},
    }
    shown = await onelog("group", "describe", "readers")
    assert "priority.factor=50" in shown.out
    assert "readers has no live members" in shown.out
    ended = await onelog("group", "update", "readers", "--attribute", "lite.bind.topic=t")
    assert ended.code == 2
    assert "this broker does not implement it" in ended.err
    ended = await onelog("group", "delete", "readers", "--yes")
    assert (ended.code, ended.out) == (0, "readers: deleted on broker-a\n")
    assert cluster.brokers[0].core.groups.get("readers") is None


async def test_a_retry_policy_is_set_and_shown(onelog: Run, cluster: LiveCluster) -> None:
    await onelog("group", "create", "readers", "--retry-policy", "exponential:1s,10m,3")
    (settings,) = (await onelog("group", "describe", "readers", "--json")).document["settings"]
    assert settings["retry_policy"] == {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1_000, "max": 600_000, "multiplier": 3},
    }
    assert "exponential:1s,10m,3" in (await onelog("group", "describe", "readers")).out
    await onelog("group", "update", "readers", "--retry-policy", "10s,1m")
    config = cluster.brokers[0].core.groups.get("readers")
    assert config is not None
    policy = parse_policy(config.retry_policy)
    assert policy is not None
    assert [policy(times) for times in range(3)] == [10_000, 60_000, 60_000]
    await onelog("group", "update", "readers", "--retry-policy", "levels")
    assert "levels" in (await onelog("group", "describe", "readers")).out
    refused = await onelog("group", "update", "readers", "--retry-policy", "99999d")
    assert (refused.code, "groupRetryPolicy: next" in refused.err) == (2, True)


async def test_lag_per_queue_with_a_total(onelog: Run, cluster: LiveCluster) -> None:
    await filled(cluster, 1500)
    client = await cluster.client()
    await client.heartbeat("client-1", "readers", "orders", "a || b")
    await commit(client, "readers", "orders", 0, 100)
    document = (await onelog("group", "describe", "readers", "--json", "-t", "orders")).document
    assert document["lag"] == 1400
    assert document["subscriptions"]["orders"] == "a || b"
    assert [member["client_id"] for member in document["members"]] == ["client-1"]
    assert [(q["queue"], q["position"], q["lag"]) for q in document["queues"]] == [
        (0, 100, 1400),
        (1, 0, 0),
    ]
    shown = (await onelog("group", "describe", "readers", "--owners")).out
    for text in ("client-1", "push clustering", "a || b", "1,400", "total", "orders"):
        assert text in shown


async def test_members_that_subscribe_differently_are_pointed_out(
    onelog: Run, cluster: LiveCluster
) -> None:
    await filled(cluster)
    for client_id, expression in (("client-1", "a"), ("client-2", "a"), ("client-3", "b")):
        client = await cluster.client()
        await client.heartbeat(client_id, "readers", "orders", expression)
    ended = await onelog("group", "describe", "readers", "--json")
    assert ended.document["mismatch"] == {
        "client-1": {"orders": "a"},
        "client-2": {"orders": "a"},
        "client-3": {"orders": "b"},
    }
    assert "members subscribe differently" in (await onelog("group", "describe", "readers")).out
    await client.heartbeat("client-3", "readers", "orders", "a")
    ended = await onelog("group", "describe", "readers", "--json")
    assert ended.document["mismatch"] is None
    assert "differently" not in (await onelog("group", "describe", "readers")).out


async def test_the_list_has_members_and_lag(onelog: Run, cluster: LiveCluster) -> None:
    await filled(cluster)
    client = await cluster.client()
    await client.heartbeat("client-1", "readers", "orders")
    await commit(client, "readers", "orders", 0, 2)
    (line,) = (await onelog("group", "list", "--json")).document
    assert (line["group"], line["members"], line["lag"]) == ("readers", 1, 3)
    assert (line["consume_type"], line["brokers"]) == ("CONSUME_PASSIVELY", ["broker-a"])
    shown = await onelog("group", "list")
    assert "readers" in shown.out
    assert "TOOLS_CONSUMER" not in shown.out
    everything = (await onelog("group", "list", "--all", "--json")).document
    assert {"readers", "TOOLS_CONSUMER"} <= {each["group"] for each in everything}


async def test_a_group_goes_back_in_time(onelog: Run, cluster: LiveCluster) -> None:
    await filled(cluster)
    await onelog("group", "create", "readers")
    await commit(await cluster.client(), "readers", "orders", 0, 5)
    move = ("group", "reset", "readers", "-t", "orders")
    preview = await onelog(*move, "--to", "1h", "--dry-run", "--json")
    assert preview.document["dry_run"] is True
    assert preview.document["queues"][0] == {
        "topic": "orders",
        "broker": "broker-a",
        "queue": 0,
        "before": 5,
        "after": 0,
    }
    assert positions(cluster, "readers") == {0: 5}
    refused = await onelog(*move, "--to", "1h", stdin="n\n")
    assert refused.code == 2
    assert "5 messages come again?" in refused.err
    assert positions(cluster, "readers") == {0: 5}
    moved = await onelog(*move, "--to", "1h", "--yes")
    assert moved.code == 0
    assert "readers was moved: 5 messages come again" in moved.out
    assert positions(cluster, "readers") == {0: 0, 1: 0}
    now = await onelog(*move, "--to", "now", "--yes", "--json")
    assert [queue["after"] for queue in now.document["queues"]] == [5, 0]
    first = await onelog(*move, "--to", "earliest", stdin="y\n")
    assert "to the oldest message" in first.err
    assert positions(cluster, "readers") == {0: 0, 1: 0}


async def test_a_backlog_is_skipped(onelog: Run, cluster: LiveCluster) -> None:
    await filled(cluster)
    await onelog("group", "create", "readers")
    skip = ("group", "skip", "readers", "-t", "orders")
    assert "5 messages are skipped" in (await onelog(*skip, "--dry-run")).out
    assert positions(cluster, "readers") == {}
    assert (await onelog(*skip, stdin="")).code == 2
    assert positions(cluster, "readers") == {}
    assert (await onelog(*skip, "--yes")).code == 0
    assert positions(cluster, "readers") == {0: 5, 1: 0}


async def test_a_clone_asks_only_if_the_target_exists(onelog: Run, cluster: LiveCluster) -> None:
    await filled(cluster)
    await onelog("group", "create", "readers")
    await onelog("group", "skip", "readers", "-t", "orders", "--yes")
    ended = await onelog("group", "clone", "readers", "others", "--json")
    assert [(q["queue"], q["after"]) for q in ended.document["queues"]] == [(0, 5), (1, 0)]
    assert positions(cluster, "others") == {0: 5, 1: 0}
    again = await onelog("group", "clone", "readers", "others", stdin="n\n")
    assert again.code == 2
    assert "others exists: move it" in again.err
    assert (await onelog("group", "clone", "readers", "others", "-y")).code == 0


async def test_what_does_not_exist_ends_with_1(onelog: Run, cluster: LiveCluster) -> None:
    await filled(cluster)
    await onelog("group", "create", "readers")
    for words in (
        ("describe", "nope"),
        ("delete", "nope", "--yes"),
        ("update", "nope", "--retries", "1"),
        ("reset", "nope", "-t", "orders", "--to", "now", "--yes"),
        ("reset", "readers", "-t", "nope", "--to", "now", "--yes"),
        ("skip", "readers", "-t", "nope", "--yes"),
        ("clone", "nope", "others"),
    ):
        ended = await onelog("group", *words)
        assert (ended.code, ended.out) == (1, "")
        assert "nope" in ended.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("update", "readers"), "nothing to change"),
        (("create", "readers"), "exists already"),
        (("create", "bad name!"), "illegal characters"),
        (("reset", "readers", "-t", "orders", "--to", "someday", "-y"), "is no time"),
        (("reset", "readers", "-t", "orders"), "--to"),
        (("clone", "readers", "online", "-y"), "live members"),
    ],
)
async def test_what_cannot_be_done_ends_with_2_and_says_why(
    onelog: Run, cluster: LiveCluster, words: tuple[str, ...], reason: str
) -> None:
    await filled(cluster)
    await onelog("group", "create", "readers")
    await onelog("group", "skip", "readers", "-t", "orders", "--yes")
    await (await cluster.client()).heartbeat("c1", "online", "orders")
    ended = await onelog("group", *words)
    assert (ended.code, ended.out) == (2, "")
    assert reason in ended.err


async def test_creating_twice_may_be_fine(onelog: Run) -> None:
    assert (await onelog("group", "create", "readers")).code == 0
    again = await onelog("group", "create", "readers", "--if-missing")
    assert (again.code, again.out) == (0, "readers: exists already\n")


async def test_deleting_warns_of_live_members(onelog: Run, cluster: LiveCluster) -> None:
    await filled(cluster)
    await (await cluster.client()).heartbeat("c1", "readers", "orders")
    ended = await onelog("group", "delete", "readers", stdin="n\n")
    assert ended.code == 2
    assert "which has 1 live members?" in ended.err
    assert cluster.brokers[0].core.groups.get("readers") is not None


async def test_following_outlives_a_broker_that_goes_away(cluster: LiveCluster) -> None:
    await filled(cluster)
    client = await cluster.client()
    await client.heartbeat("c1", "readers", "orders")
    await commit(client, "readers", "orders", 0, 1)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onelog", "group", "describe", "readers", "-t", "orders"),
        *("--follow", "--interval", "0.1", "--timeout", "20", "--json", "-n", cluster.addresses),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    async with asyncio.timeout(60):
        assert json.loads(await child.stdout.readline())["lag"] == 4
        for listener in cluster.brokers[0]._listeners:
            await listener.close()
        assert b"no connection to" in await child.stderr.readline()
        child.send_signal(signal.SIGINT)
        await child.communicate()
    assert child.returncode == 0


def test_a_group_that_lags_is_behind_in_time() -> None:
    now_ms = SystemClock().now_ms()
    progress = GroupProgress(
        "readers", (QueueProgress("t", "b", 0, 9, 5, 5, now_ms - 65_000),), 0.0, ()
    )
    summary = GroupSummary("readers", False, ("b",), GroupMembers((), "", "", "", {}), progress)
    out = console()
    with out.capture() as captured:
        out.print(show_summaries([summary], now_ms)[1])
    assert "1 min 5 s" in captured.get()


@pytest.mark.parametrize(
    ("moves", "said"),
    [
        ([(0, 0)], "nothing changes"),
        ([(None, 3), (1, 2)], "4 messages are skipped"),
        ([(5, 3)], "2 messages come again"),
        ([(5, 3), (0, 1000)], "1,000 messages are skipped and 2 messages come again"),
    ],
)
def test_the_effect_of_a_move_in_messages(moves: list[tuple[int | None, int]], said: str) -> None:
    queues = tuple(Move("t", "b", 0, before, after) for before, after in moves)
    assert effect(Moves("g", queues, ())) == said
