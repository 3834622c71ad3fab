"""`onelog consume`, as people use it."""

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from tests.client.live_cluster import LiveCluster
from tests.commands.conftest import Run
from tests.waiting import eventually


async def fill(cluster: LiveCluster, count: int = 10, topic: str = "orders") -> None:
    await cluster.create_topic(topic, queues=2)
    for number in range(count):
        await cluster.send(topic, b"%d" % number, queue=number % 2)


def numbers(out: str) -> list[int]:
    return sorted(int(json.loads(line)["body"]) for line in out.splitlines())


async def position(cluster: LiveCluster, group: str, topic: str = "orders") -> int:
    async with cluster.admin() as admin:
        progress = await admin.groups.progress(group, topic)
    return sum(max(0, queue.position) for queue in progress.queues)


@contextlib.asynccontextmanager
async def following(cluster: LiveCluster, *arguments: str) -> AsyncIterator[Process]:
    """A command that goes on until it is interrupted."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onelog", "consume", "orders", "-f", "-n", cluster.addresses),
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.communicate()


async def test_everything_that_is_there_is_printed_and_nothing_is_committed(
    onelog: Run, cluster: LiveCluster
) -> None:
    await fill(cluster)
    for _ in range(2):
        ended = await onelog("consume", "orders", "--json")
        assert (ended.code, ended.err) == (0, "")
        assert numbers(ended.out) == list(range(10))
    for group in ("TOOLS_CONSUMER", "onelog-consume"):
        assert await position(cluster, group) == 0


async def test_lines_for_people(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    await cluster.send("orders", "Grün\n\x1b[31m".encode(), TAGS="paid", KEYS="k1 k2")
    await cluster.send("orders", b"\xff\xfe", queue=1)
    ended = await onelog("consume", "orders", "--utc")
    first, second = sorted(ended.out.splitlines(), key=lambda line: "paid" not in line)
    assert first.endswith(r" broker-a/0@0 [paid] {k1 k2} Grün\n\x1b[31m")
    assert second.endswith(" broker-a/1@0 (2 B that are no text)")


async def test_json_has_everything_and_can_be_produced_again(
    onelog: Run, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", queues=1)
    await cluster.create_topic("copies", queues=1)
    await cluster.send("orders", b"text", UNIQ_KEY="U1", TAGS="paid", KEYS="k1 k2", colour="blue")
    await cluster.send("orders", b"\xff\x00")
    printed = (await onelog("consume", "orders", "--json")).out
    first, second = map(json.loads, printed.splitlines())
    assert (first["id"], first["tags"], first["keys"]) == ("U1", "paid", ["k1", "k2"])
    assert first["properties"] == {"colour": "blue"}
    assert (first["queue"], first["offset"], first["attempt"]) == (0, 0, 1)
    assert (second["body"], second["body_encoding"]) == ("/wA=", "base64")
    ended = await onelog("produce", "copies", "--as", "json", stdin=printed)
    assert (ended.code, ended.err) == (0, "")
    copied = [json.loads(e) for e in (await onelog("consume", "copies", "--json")).out.splitlines()]
    for name in ("body", "body_encoding", "tags", "keys", "properties"):
        assert [each[name] for each in copied] == [first[name], second[name]]


async def test_bodies_alone(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", queues=1)
    for body in (b"one", b"two"):
        await cluster.send("orders", body)
    assert (await onelog("consume", "orders", "--bodies")).out == "one\ntwo\n"


async def test_only_what_is_wanted(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", queues=1)
    await cluster.send("orders", b"1", TAGS="paid", KEYS="k1", amount="5")
    await cluster.send("orders", b"2", TAGS="open", KEYS="k2 k1", amount="7")
    await cluster.send("orders", b"3", TAGS="lost", KEYS="k3", amount="9")
    for arguments, wanted in (
        (("--tag", "paid || open"), [1, 2]),
        (("--key", "k1"), [1, 2]),
        (("--key", "k"), []),
        (("--sql", "amount > 6"), [2, 3]),
        (("--count", "2"), [1, 2]),
        (("--key", "k3", "--count", "1"), [3]),
        (("--since", "1h"), [1, 2, 3]),
        (("--since", "2100-01-01"), []),
    ):
        ended = await onelog("consume", "orders", "--json", *arguments)
        assert (ended.code, numbers(ended.out)) == (0, wanted), arguments


async def test_a_rate_is_kept(onelog: Run, cluster: LiveCluster) -> None:
    await fill(cluster, 6)
    began = asyncio.get_running_loop().time()
    assert numbers((await onelog("consume", "orders", "--json", "--rate", "20")).out)
    assert asyncio.get_running_loop().time() - began >= 0.25


@pytest.mark.parametrize("order", [(), ("--orderly",)])
async def test_a_group_goes_on_where_it_stopped(
    onelog: Run, cluster: LiveCluster, order: tuple[str, ...]
) -> None:
    await fill(cluster)
    consume = ("consume", "orders", "--json", "-g", "billing", *order)
    first = numbers((await onelog(*consume, "--from-beginning", "--count", "3")).out)
    assert len(first) == 3
    assert await position(cluster, "billing") == 3
    rest = await onelog(*consume)
    assert (rest.code, rest.err) == (0, "")
    assert sorted(first + numbers(rest.out)) == list(range(10))
    assert (await onelog(*consume)).out == ""
    assert await position(cluster, "billing") == 10


async def test_a_new_group_begins_with_what_comes(onelog: Run, cluster: LiveCluster) -> None:
    await fill(cluster)
    assert (await onelog("consume", "orders", "-g", "new")).out == ""
    await cluster.send("orders", b"10")
    assert numbers((await onelog("consume", "orders", "-g", "new", "--json")).out) == [10]


async def test_what_the_key_leaves_out_counts_as_consumed(
    onelog: Run, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", queues=1)
    for key in ("a", "b", "a"):
        await cluster.send("orders", b"1", KEYS=key)
    arguments = ("-g", "g", "--from-beginning", "--key", "b", "--json")
    assert numbers((await onelog("consume", "orders", *arguments)).out) == [1]
    assert await position(cluster, "g") == 3


@pytest.mark.parametrize("group", [(), ("-g", "billing"), ("-g", "billing", "--orderly")])
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_following_goes_on_until_it_is_interrupted(
    cluster: LiveCluster, group: tuple[str, ...], ending: signal.Signals
) -> None:
    await fill(cluster, 4)
    async with following(cluster, "--json", *group, "--from-beginning") as program:
        assert program.stdout is not None
        heard = [int(json.loads(await program.stdout.readline())["body"]) for _ in range(4)]
        await cluster.send("orders", b"4")
        heard.append(int(json.loads(await program.stdout.readline())["body"]))
        assert sorted(heard) == [0, 1, 2, 3, 4]
        program.send_signal(ending)
        out, err = await asyncio.wait_for(program.communicate(), 60)
        assert (program.returncode, out, err) == (0, b"", b"")
    if group:
        # Interrupted between the print and its commit, the last message comes once more.
        assert await position(cluster, "billing") in (4, 5)


async def test_without_a_group_following_begins_at_the_end(cluster: LiveCluster) -> None:
    await fill(cluster, 4)
    async with following(cluster, "--json", "--count", "1") as program:

        async def send_and_look() -> bool:
            await cluster.send("orders", b"100")
            await asyncio.sleep(0.2)
            return program.returncode is not None

        await eventually(send_and_look, "the end of it")
        out, _ = await program.communicate()
        assert (program.returncode, numbers(out.decode())) == (0, [100])


@pytest.mark.parametrize("group", [("-g", "billing"), ("-g", "billing", "--orderly")])
async def test_what_nobody_read_is_not_committed(
    cluster: LiveCluster, group: tuple[str, ...]
) -> None:
    await cluster.create_topic("orders", queues=1)
    async with following(cluster, "--bodies", *group, "--from-beginning") as program:
        await cluster.send("orders", b"first")
        assert program.stdout is not None
        assert await program.stdout.readline() == b"first\n"
        await eventually(lambda: is_at(cluster, 1), "the first is committed")
        program._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        await cluster.send("orders", b"second")
        await asyncio.wait_for(program.wait(), 60)
        assert program.returncode == 1
    assert await position(cluster, "billing") == 1


async def is_at(cluster: LiveCluster, wanted: int) -> bool:
    return await position(cluster, "billing") == wanted


@pytest.mark.parametrize("group", [(), ("-g", "billing"), ("-g", "billing", "--orderly")])
async def test_a_missing_topic_ends_with_1(onelog: Run, group: tuple[str, ...]) -> None:
    ended = await onelog("consume", "nothing", *group)
    assert (ended.code, ended.out) == (1, "")
    assert "'nothing' does not exist" in ended.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--orderly",), "name one with --group"),
        (("--since", "soon"), "no time"),
        (("--since", "1h", "--from-beginning"), "exclude one another"),
        (("--sql", "amount >"), "the filter on orders: at character 9"),
    ],
)
async def test_wrong_options_are_refused(
    onelog: Run, cluster: LiveCluster, arguments: tuple[str, ...], told: str
) -> None:
    await fill(cluster, 2)
    ended = await onelog("consume", "orders", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err


async def test_a_namespace_keeps_topics_apart(onelog: Run, cluster: LiveCluster) -> None:
    space = ("--namespace", "shop")
    await cluster.create_topic("shop%orders", queues=1)
    assert (await onelog("produce", "orders", "-b", "1", *space)).code == 0
    for group in ((), ("-g", "billing", "--from-beginning")):
        ended = await onelog("consume", "orders", "--json", *space, *group)
        assert (ended.code, numbers(ended.out)) == (0, [1])
    assert await position(cluster, "shop%billing", "shop%orders") == 1
