"""The whole broker and name server, in processes of their own, among clients that mean no good.

A short run of each is among the fast tests; `make soak` makes them long, with a seed of its own
(printed; SEED repeats it).
"""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import uvloop

from onelog.gateways.remoting.gateway import HANDLERS
from onelog.nameserver.kv import BYTES_MAX as KV_BYTES_MAX
from onelog.nameserver.session import HANDLERS as NAMESERVER_HANDLERS
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from tests.e2e.hostile_clients import (
    Crowd,
    DeafConsumer,
    Unfinished,
    Witness,
    WitnessBroker,
    bombard,
    topics_and_groups,
    witness,
)
from tests.e2e.mutated_bytes import MutatedBytes
from tests.e2e.stall_probe import probing
from tests.e2e.watched_broker import (
    ALL_PORTS,
    ServingEverything,
    WatchedBroker,
    WatchedNameserver,
    raise_file_limit,
)
from tests.gateways.remoting.live import broker, client
from tests.gateways.remoting.samples import SAMPLES
from tests.nameserver.samples import SAMPLES as NAMESERVER_SAMPLES
from tests.waiting import eventually
from tests.wire.remoting.mutation import Mutation

KIB, MIB = 1 << 10, 1 << 20
WARM_UP_FRAMES = 1_000
GROWTH_BYTES_MAX = 16 * MIB
"""What memory may grow by where nothing is to be kept: caches, and what the allocator holds."""
KEPT_OF_OTHERS_BYTES_MAX = 64 * MIB
"""What may be kept of queues, topics, sessions and messages that are right by chance."""
KEPT_BYTES_MAX = 32 * KIB
"""What one topic or group may take: some of the changed requests create some."""
CONNECTION_BYTES_MAX = 16 * KIB
LEFT_BYTES_MAX = 200
"""What a connection that is gone may leave behind: the allocator's fragments."""
DEAF = 10
DEAF_BYTES_MAX = 4 * MIB
"""What one consumer that never reads may cost; messages are sent from where they are mapped."""

STALL_CPU_MS_MAX = 50
"""How long a server may compute before somebody else has an answer."""

LONG = [pytest.mark.soak, pytest.mark.timeout(3600)]


def seed(*, fresh: bool) -> int:
    """A number to start from, printed so that a failure shows it."""
    given = os.environ.get("SEED")  # Not ONELOG_: the server would take it for a setting.
    number = int(given) if given else time.time_ns() % 1_000_000 if fresh else 7
    print(f"seed {number}")
    return number


def test_there_is_a_sample_of_every_request_that_the_broker_answers() -> None:
    assert {command.code for command in SAMPLES} == set(HANDLERS)


async def test_every_sample_is_a_request_that_the_broker_understands(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as one:
        for sample in SAMPLES:
            answer = await one.peer.ask(RequestCode(sample.code), sample.ext, sample.body, 20_000)
            assert "custom field" not in str(answer.remark), sample
            assert "not supported" not in str(answer.remark), sample


def test_there_is_a_sample_of_every_request_that_the_name_server_answers() -> None:
    assert {command.code for command in NAMESERVER_SAMPLES} == set(NAMESERVER_HANDLERS)


@dataclass(frozen=True)
class Siege:
    """A server, what it is bombarded with, who must not notice, and what it may have to keep."""

    server: type[WatchedBroker]
    samples: list[Command]
    witness: type[Witness]
    kept_bytes_max: int = 0


BROKER = Siege(WatchedBroker, SAMPLES, Witness)
# Whatever is put into the key-value configuration stays, up to its limit.
NAMESERVER = Siege(WatchedNameserver, NAMESERVER_SAMPLES, WitnessBroker, 3 * KV_BYTES_MAX)
SIEGES = [
    pytest.param(BROKER, 5_000, id="broker"),
    pytest.param(NAMESERVER, 5_000, id="name-server"),
    pytest.param(BROKER, 1_000_000, id="broker-long", marks=LONG),
    pytest.param(NAMESERVER, 1_000_000, id="name-server-long", marks=LONG),
]


@pytest.mark.parametrize(("siege", "count"), SIEGES)
def test_mutated_requests_hurt_nobody_stop_nothing_and_leave_nothing_behind(
    tmp_path: Path, siege: Siege, count: int
) -> None:
    random = Random(seed(fresh=count > 5_000))
    mutation = Mutation(siege.samples, random)
    with siege.server(tmp_path) as watched:
        # uvloop: what the clients need, the server does not get.
        uvloop.run(besiege(watched, siege, mutation, random, count))
        assert watched.bugs() == []
        assert watched.is_running
    assert watched.status == 0


async def besiege(
    watched: WatchedBroker, siege: Siege, mutation: Mutation, random: Random, count: int
) -> None:
    """Send so many changed requests, and see what that does to others and to the memory."""
    port = watched.port
    async with witness(port, siege.witness) as other:
        await bombard(port, mutation, random, WARM_UP_FRAMES)
        before, files = watched.anonymous_bytes(), watched.open_files()
        known = await kept(siege, other)
        with probing(port, watched.pid, watched.log.with_name("probe.log")) as probed:
            answered = await bombard(port, mutation, random, count)
        assert answered > count // 20, "nothing got through to the handlers"
        more = await kept(siege, other) - known
        after = watched.anonymous_bytes()
    print(
        f"{count} frames: {answered} connections answered; RssAnon {before / MIB:.1f} MiB "
        f"before, {after / MIB:.1f} MiB after; {more} topics and groups more; "
        f"{watched.open_files() - files} open files more; the other client did {other.count} "
        f"things, the slowest in {other.slowest_ms:.0f} ms; {probed.asked} questions, the "
        f"slowest in {probed.slowest_ms:.0f} ms, of which the server stalled "
        f"{probed.stalled_ms:.0f} ms and computed {probed.cpu_ms:.0f} ms"
    )
    assert after - before < GROWTH_BYTES_MAX + siege.kept_bytes_max + more * KEPT_BYTES_MAX
    assert probed.lost == 0
    assert probed.cpu_ms < STALL_CPU_MS_MAX


async def kept(siege: Siege, other: Witness) -> int:
    """What a broker has to keep of requests that are right by chance."""
    return sum(await topics_and_groups(other.words)) if siege is BROKER else 0


PORTS = [
    pytest.param(section, count, id=section + suffix, marks=marks)
    for section in ALL_PORTS
    for count, suffix, marks in ((600, "", []), (1_000_000, "-long", LONG))
]


@pytest.mark.parametrize(("section", "count"), PORTS)
def test_mutated_bytes_on_any_port_hurt_nobody_and_stop_nothing(
    tmp_path: Path, section: str, count: int
) -> None:
    random = Random(seed(fresh=count > 5_000))
    mutation = MutatedBytes(section, random)
    with ServingEverything(tmp_path) as watched:
        uvloop.run(besiege_port(watched, section, mutation, random, count))
        assert watched.bugs() == []
        assert watched.is_running
    assert watched.status == 0


async def besiege_port(
    watched: ServingEverything, section: str, mutation: MutatedBytes, random: Random, count: int
) -> None:
    """Send so many changed frames to a port, while others use that of RocketMQ."""
    port = watched.ports[section]
    async with witness(watched.port) as other:
        await bombard(port, mutation, random, count // 20)
        before = watched.anonymous_bytes()
        with probing(watched.port, watched.pid, watched.log.with_name("probe.log")) as probed:
            answered = await bombard(port, mutation, random, count)
        grown = watched.anonymous_bytes() - before
    print(
        f"{section}, {count} frames: {answered} connections answered; {grown / MIB:.1f} MiB more; "
        f"the other client did {other.count} things, the slowest in {other.slowest_ms:.0f} ms; "
        f"{probed.asked} questions, for the slowest the server computed {probed.cpu_ms:.0f} ms"
    )
    assert answered > count // 20 or section == "replication"
    assert grown < GROWTH_BYTES_MAX + KEPT_OF_OTHERS_BYTES_MAX
    assert probed.asked
    assert probed.lost == 0
    assert probed.cpu_ms < STALL_CPU_MS_MAX


@pytest.mark.parametrize("count", [30, pytest.param(1_000, marks=LONG)])
async def test_unfinished_requests_of_many_connections_take_no_more_than_their_share(
    tmp_path: Path, count: int
) -> None:
    share = 64 * MIB
    with WatchedBroker(tmp_path, net__unread_bytes_max=share) as watched:
        async with witness(watched.port) as other:
            before = watched.anonymous_bytes()
            crowd = Unfinished(watched.port)
            await crowd.send(count, 15 * MIB)
            grown = watched.anonymous_bytes() - before
            crowd.leave()
        print(
            f"{count} connections with 15 MiB each: {grown / MIB:.0f} MiB; the other client sent "
            f"and read {other.count} messages, the slowest in {other.slowest_ms:.0f} ms"
        )
        assert grown < 2 * share
        assert watched.bugs() == []
    assert watched.status == 0


async def crowd_round(watched: WatchedBroker, count: int) -> None:
    """Many connect and do nothing, some ask and never read; all of them go again."""
    before, files = watched.anonymous_bytes(), watched.open_files()
    crowd = Crowd(watched.port)
    await crowd.grow(count)
    crowded = watched.anonymous_bytes()
    deaf = [DeafConsumer(watched.port, "large") for _ in range(DEAF)]
    await asyncio.gather(*(each.ask_until_stuck() for each in deaf))
    deafened = watched.anonymous_bytes()
    print(
        f"{count} idle connections: {(crowded - before) / count:.0f} bytes of memory each; "
        f"{DEAF} consumers that never read asked {sum(each.asked for each in deaf)} times: "
        f"{(deafened - crowded) / DEAF / KIB:.0f} KiB each"
    )
    assert await crowd.still_served() == count
    assert crowded - before < MIB + count * CONNECTION_BYTES_MAX
    assert deafened - crowded < DEAF * DEAF_BYTES_MAX
    crowd.leave()
    for each in deaf:
        each.close()
    await eventually(lambda: watched.open_files() <= files + 4)


@pytest.mark.parametrize("count", [300, pytest.param(5_000, marks=LONG)])
async def test_idle_connections_and_deaf_consumers_cost_little_and_others_are_served(
    tmp_path: Path, count: int
) -> None:
    if raise_file_limit(count + 1_000) < count + 500:
        pytest.skip("the system does not let this process open enough files")
    with WatchedBroker(tmp_path) as watched:
        async with witness(watched.port) as other:
            for _ in range(32):
                assert (await other.words.send("large", bytes(7_000))).code == 0
            await crowd_round(watched, count)
            left = watched.anonymous_bytes()
            for _ in range(2):
                await crowd_round(watched, count)
            more = watched.anonymous_bytes() - left
        print(
            f"two more rounds left {more / KIB:.0f} KiB; the other client sent and read "
            f"{other.count} messages, the slowest in {other.slowest_ms:.0f} ms"
        )
        assert watched.bugs() == []
        # What the allocator keeps of requests that waited for a tick; a connection has 16 KiB.
        assert more < 4 * MIB + 2 * count * LEFT_BYTES_MAX
    assert watched.status == 0
