"""`onelog topic`, as people use it."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from onelog.commands.topic import PERMISSION_BITS, show_perm
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.commands.conftest import Run
from tests.commands.running import run_beside


async def test_create_list_describe_and_delete(onelog: Run, cluster: LiveCluster) -> None:
    ended = await onelog("topic", "create", "orders", "--queues", "3", "--perm", "r")
    assert (ended.code, ended.out, ended.err) == (0, "orders: created on broker-a\n", "")
    assert (await onelog("topic", "list", "--json")).document == [
        {"topic": "orders", "kind": "user"}
    ]
    listed = await onelog("topic", "list", "--all")
    assert "orders" in listed.out
    assert "SCHEDULE_TOPIC_XXXX" in listed.out
    assert "SCHEDULE_TOPIC_XXXX" not in (await onelog("topic", "list")).out
    described = (await onelog("topic", "describe", "orders", "--json")).document
    assert described["settings"][0]["read_queues"] == 3
    assert described["settings"][0]["perm"] == 4
    assert [queue["queue"] for queue in described["queues"]] == [0, 1, 2]
    ended = await onelog("topic", "delete", "orders", "--yes", "--json")
    assert ended.document == {"topic": "orders", "deleted_on": ["broker-a"], "messages": 0}
    assert (await onelog("topic", "list", "--json")).document == []


async def test_tables_show_what_json_tells(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 2)
    for _ in range(1234):
        await cluster.send("orders", b"x", queue=1)
    await (await cluster.client()).heartbeat("c1", "readers", "orders")
    described = await onelog("topic", "describe", "orders")
    for text in ("orders", "broker-a", cluster.brokers[0].address, "1,234", "r w", "total"):
        assert text in described.out
    assert "consumer groups: readers" in described.out
    status = (await onelog("topic", "status", "orders", "--json")).document
    assert status["messages"] == 1234
    assert status["queues"][1]["max_offset"] == 1234
    shown = await onelog("topic", "status", "orders", "--utc")
    assert "Z" in shown.out
    route = (await onelog("topic", "route", "orders", "--json")).document
    assert route["brokers"][0]["addresses"] == {"0": cluster.brokers[0].address}
    assert "master" in (await onelog("topic", "route", "orders")).out


async def test_what_does_not_exist_ends_with_1(onelog: Run) -> None:
    for words in (
        ("describe", "nope"),
        ("status", "nope"),
        ("route", "nope"),
        ("update", "nope", "--queues", "2"),
        ("delete", "nope", "--yes"),
        ("create", "orders", "--cluster", "nope"),
        ("list", "--cluster", "nope"),
    ):
        ended = await onelog("topic", *words)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith("onelog: ")
        assert "nope" in ended.err
        assert ended.err.count("\n") == 1


async def test_creating_twice_is_an_error_unless_it_may_be_there(onelog: Run) -> None:
    assert (await onelog("topic", "create", "orders")).code == 0
    again = await onelog("topic", "create", "orders")
    assert again.code == 2
    assert "exists already on broker-a" in again.err
    fine = await onelog("topic", "create", "orders", "--if-missing", "--json")
    assert (fine.code, fine.document) == (0, {"topic": "orders", "created_on": []})


async def test_update_changes_what_is_named(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 2)
    ended = await onelog(
        "topic", "update", "orders", "--write-queues", "5", "--attribute", "message.type=FIFO"
    )
    assert (ended.code, ended.out) == (0, "orders: changed on broker-a\n")
    config = cluster.brokers[0].core.topics.get("orders")
    assert config is not None
    assert (config.read_queues, config.write_queues) == (2, 5)
    assert config.attributes == {"message.type": "FIFO"}
    await onelog("topic", "update", "orders", "--attribute", "message.type=", "--order")
    config = cluster.brokers[0].core.topics.get("orders")
    assert config is not None
    assert (config.attributes, config.order) == ({}, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("update", "orders"), "nothing to change"),
        (("create", "x", "--queues", "1", "--read-queues", "2"), "--queues is for both"),
        (("create", "x", "--attribute", "a"), "write it as name=value"),
        (("create", "x", "--attribute", "a=1,b=2"), "without commas"),
        (("create", "bad name!"), "illegal characters"),
        (("create", "x", "--queues", "0"), "--queues"),
        (("create", "x", "--perm", "nonsense"), "nonsense"),
        (("status", "orders", "--timeout", "0"), "--timeout"),
        (("list", "-n", "nonsense"), "write host:port"),
        (("list", "-n", "127.0.0.1:1"), "no connection to 127.0.0.1:1"),
        (("list", "--tls-ca", "no-such-file.pem"), "no-such-file.pem"),
    ],
)
async def test_what_cannot_be_done_ends_with_2_and_says_why(
    onelog: Run, cluster: LiveCluster, words: tuple[str, ...], reason: str
) -> None:
    await cluster.create_topic("orders")
    ended = await onelog("topic", *words)
    assert (ended.code, ended.out) == (2, "")
    assert reason in ended.err


@pytest.mark.parametrize(("answer", "code"), [("n\n", 2), ("", 2), ("y\n", 0)])
async def test_deleting_asks_first(
    onelog: Run, cluster: LiveCluster, answer: str, code: int
) -> None:
    await cluster.create_topic("orders")
    await cluster.send("orders", b"x")
    ended = await onelog("topic", "delete", "orders", stdin=answer)
    assert ended.code == code
    assert "Delete topic orders with 1 messages?" in ended.err
    assert (cluster.brokers[0].core.topics.get("orders") is None) == (code == 0)


async def test_a_broker_that_does_not_answer_is_said_and_the_rest_is_shown(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster:
        for broker in (0, 1):
            await cluster.create_topic("orders", 1, broker=broker)
        for listener in cluster.brokers[1]._listeners:
            await listener.close()
        ended = await run_beside("topic", "status", "orders", "--json", "-n", cluster.addresses)
        assert ended.code == 2
        assert [queue["broker"] for queue in ended.document["queues"]] == ["broker-a"]
        assert "broker-b: no connection to" in ended.err


async def test_names_cannot_play_tricks_with_the_terminal(
    onelog: Run, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", 1)
    await (await cluster.client()).heartbeat("c1", "readers", "orders")
    ended = await onelog("topic", "describe", "\x1b[31mnope")
    assert ended.code == 1
    assert "\x1b" not in ended.err


async def test_following_shows_it_again_until_interrupted(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onelog", "topic", "status", "orders"),
        *("--follow", "--interval", "0.1", "--json", "-n", cluster.addresses),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    async with asyncio.timeout(60):
        assert json.loads(await child.stdout.readline())["messages"] == 0
        await cluster.send("orders", b"x")
        while json.loads(await child.stdout.readline())["messages"] != 1:
            pass
        child.send_signal(signal.SIGINT)
        _, err = await child.communicate()
    assert (child.returncode, err) == (0, b"")


def test_permissions_in_letters() -> None:
    assert [PERMISSION_BITS[each] for each in ("rw", "r", "w")] == [6, 4, 2]
    assert [show_perm(perm) for perm in (6, 4, 2, 7, 0)] == [
        "r w",
        "r",
        "w",
        "r w inherited",
        "none",
    ]
