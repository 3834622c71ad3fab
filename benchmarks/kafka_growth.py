"""A broker with many Kafka partitions and groups: what it costs when nobody does anything,
what is left for one busy partition, and how long a hundred members take to share out.

The groups have committed a position for each of some partitions, and have no members: an idle
member costs its heartbeats, which are its client's choice.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from statistics import median

from benchmarks.kafka import MESSAGES, PRODUCER, Peer, compiled, create, drive, onelog
from benchmarks.process_usage import anonymous_bytes, cpu_seconds
from benchmarks.table import Options, Row, under
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.raw import RawClient

TOPICS, PARTITIONS, GROUPS, MEMBERS = 50, 100, 1_000, 100
IDLE_S = 20
ROUNDS = 3
JOIN, SYNC = 5, 3
HEARTBEAT_S = 0.1


def run(options: Options) -> list[Row]:
    """The suite."""
    client = compiled(options.folder)
    share, rounds, idle_s = (10, 1, 5) if options.quick else (1, ROUNDS, IDLE_S)
    rates: dict[bool, list[float]] = {False: [], True: []}
    idle, rebalances, memory = 0.0, [], 0.0
    for number in range(rounds):
        for is_many in (False, True):
            options.announce(f"round {number + 1}, {'many' if is_many else 'one'}")
            folder = options.folder / f"growth-{number}-{is_many}"
            with onelog(folder, False) as peer:
                if is_many:
                    rebalances.append(asyncio.run(_grow(peer)))
                    memory = anonymous_bytes(peer.pids) / 2**20
                    idle = _idle(peer, idle_s)
                for topic in ("warm", "busy"):
                    create(peer, topic, 1)
                    seen = drive(
                        client, peer, "produce", topic, 100, MESSAGES[100] // share, 0, *PRODUCER
                    )
                rates[is_many].append(seen.rate)
    what = f"{TOPICS * PARTITIONS:,} partitions, {GROUPS:,} groups"
    alone, among = median(rates[False]), median(rates[True])
    return [
        under(f"idle CPU, {what}", idle * 100, "% of a core", 2.0, note=f"{memory:.0f} MiB"),
        Row(f"produce to one partition among {what}", among, "msg/s", alone, "alone", 0.9),
        under(f"a rebalance of {MEMBERS} members", max(rebalances), "s", 2.0),
    ]


def _idle(peer: Peer, seconds: float) -> float:
    """The part of a core that the broker takes."""
    time.sleep(2)  # Until what was asked for before is done.
    before = cpu_seconds(peer.pids)
    time.sleep(seconds)
    return (cpu_seconds(peer.pids) - before) / seconds


@contextlib.asynccontextmanager
async def _client(peer: Peer) -> AsyncIterator[RawClient]:
    host, _, port = peer.bootstrap.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


async def _grow(peer: Peer) -> float:
    """Make topics and groups; how long the members of one group took to share out."""
    async with _client(peer) as admin:
        for number in range(TOPICS):
            await admin.make_topic(f"topic-{number}", PARTITIONS)
        for number in range(GROUPS):
            await _commit(admin, f"group-{number}", f"topic-{number % TOPICS}")
    async with contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(_client(peer)) for _ in range(MEMBERS)]
        ids = await asyncio.gather(*(_share_out(each) for each in members[:-1]))
        began = time.perf_counter()
        await asyncio.gather(
            _share_out(members[-1]),
            *(_hear_of_it(*each) for each in zip(members, ids, strict=False)),
        )
        return time.perf_counter() - began


async def _commit(client: RawClient, group: str, topic: str) -> None:
    partitions = [
        {"partition_index": number, "committed_offset": 0} for number in range(PARTITIONS)
    ]
    fields: Fields = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": partitions}],
    }
    answer = await client.ask(ApiKey.OFFSET_COMMIT, 7, fields)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer


async def _join(client: RawClient, member_id: str) -> Fields:
    """Join; a member that is told its id first joins again with it."""
    while True:
        fields: Fields = {
            "group_id": "members",
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"x" * 100}],
        }
        answer = await client.ask(ApiKey.JOIN_GROUP, JOIN, fields)
        member_id = answer["member_id"]
        if answer["error_code"] == 0:
            return answer


async def _share_out(client: RawClient, member_id: str = "") -> tuple[str, int]:
    """Join, and get what the leader has for it; its id, and the generation."""
    while True:
        answer = await _join(client, member_id)
        member_id = answer["member_id"]
        fields: Fields = {
            "group_id": "members",
            "generation_id": answer["generation_id"],
            "member_id": member_id,
            "assignments": [
                {"member_id": each["member_id"], "assignment": b"x" * 100}
                for each in answer["members"]
            ],
        }
        synced = await client.ask(ApiKey.SYNC_GROUP, SYNC, fields)
        if synced["error_code"] == 0:
            return member_id, answer["generation_id"]
        assert synced["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS, synced


async def _hear_of_it(client: RawClient, known: tuple[str, int]) -> None:
    """Beat until the group shares out again, and take part."""
    member_id, generation = known
    fields: Fields = {
        "group_id": "members",
        "member_id": member_id,
        "generation_id": generation,
    }
    while True:
        if (await client.ask(ApiKey.HEARTBEAT, 3, fields))["error_code"] != 0:
            break
        await asyncio.sleep(HEARTBEAT_S)
    await _share_out(client, member_id)
