"""Where pull consumers are in their queues, and what is kept of that."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onelog.client.consumer.pull.consumer import AsyncPullConsumer
from onelog.client.message import Queue
from onelog.errors import (
    ConfigError,
    OffsetOutOfRangeError,
    OnelogError,
    QueueNotAssignedError,
)
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.pull_reader import FIRST, SECOND, bodies, consumer, polled, send
from tests.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", queues=2)
        yield running


async def test_a_consumer_goes_on_where_its_group_was(cluster: LiveCluster) -> None:
    sent = await send(cluster, 6)
    async with consumer(cluster) as reading:
        reading.assign([FIRST])
        assert bodies(await reading.poll(20, count=4)) == sent[:4]
    async with consumer(cluster) as reading:
        reading.assign([FIRST])
        assert await reading.committed(FIRST) == 4
        assert bodies(await polled(reading, 2)) == sent[4:]


async def test_an_error_leaves_the_messages_of_the_last_poll_for_the_next_consumer(
    cluster: LiveCluster,
) -> None:
    sent = await send(cluster, 6)

    async def fail() -> None:
        async with consumer(cluster) as reading:
            reading.assign([FIRST])
            await reading.poll(20, count=2)
            await reading.poll(20, count=2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with consumer(cluster) as reading:
        reading.assign([FIRST])
        assert bodies(await polled(reading, 4)) == sent[2:]


async def test_positions_are_committed_while_the_consumer_runs(cluster: LiveCluster) -> None:
    await send(cluster, 6)
    async with consumer(cluster, commit_interval=0.05) as reading:
        reading.assign([FIRST])
        await reading.poll(20, count=2)
        await reading.poll(20, count=2)

        async def is_kept() -> bool:
            return await reading.committed(FIRST) == 2

        await eventually(is_kept, "what was given before the last poll is committed")
        await asyncio.sleep(0.2)
        assert await reading.committed(FIRST) == 2


async def test_without_auto_commit_only_what_is_committed_counts(cluster: LiveCluster) -> None:
    sent = await send(cluster, 6)
    async with consumer(cluster, auto_commit=False, commit_interval=0.01) as reading:
        reading.assign([FIRST])
        await polled(reading, 2)
        assert await reading.committed(FIRST) is None
        await reading.commit()
        assert await reading.committed(FIRST) == 2
        await polled(reading, 2)
        await reading.commit({FIRST: 3})
        await polled(reading, 2)
    async with consumer(cluster, auto_commit=False) as reading:
        reading.assign([FIRST])
        assert bodies(await polled(reading, 3)) == sent[3:]


async def test_a_commit_that_is_not_taken_is_an_error(cluster: LiveCluster) -> None:
    async with consumer(cluster) as reading:
        with pytest.raises(OnelogError, match="parcels"):
            await reading.commit({Queue("parcels", "broker-a", 0): 3})


async def test_seeking_goes_back_and_forth_and_forgets_what_was_fetched(
    cluster: LiveCluster,
) -> None:
    sent = await send(cluster, 50)
    async with consumer(cluster) as reading:
        reading.assign([FIRST])
        await reading.poll(20, count=3)
        await reading.seek(FIRST, 40)
        assert await reading.position(FIRST) == 40
        assert bodies(await reading.poll(20, count=1)) == sent[40:41]
        await reading.seek(FIRST, 1)
        assert bodies(await reading.poll(20, count=1)) == sent[1:2]
        await reading.seek_to_end()
        assert await reading.poll(0.05) == []
        await cluster.send("orders", b"newest")
        assert bodies(await reading.poll(20)) == [b"newest"]
        await reading.seek_to_begin(FIRST)
        assert bodies(await polled(reading, 51)) == [*sent, b"newest"]


async def test_seeking_past_the_ends_of_a_queue_is_refused(cluster: LiveCluster) -> None:
    await send(cluster, 3)
    async with consumer(cluster) as reading:
        reading.assign([FIRST])
        await reading.seek(FIRST, 3)
        for offset in (-1, 4):
            with pytest.raises(OffsetOutOfRangeError, match=f"from 0 to 3, but not {offset}"):
                await reading.seek(FIRST, offset)
        with pytest.raises(QueueNotAssignedError):
            await reading.seek(SECOND, 0)
        with pytest.raises(QueueNotAssignedError):
            await reading.seek_to_begin(SECOND)


async def test_offsets_are_found_by_time(cluster: LiveCluster) -> None:
    await send(cluster, 3)
    await asyncio.sleep(0.01)
    between = datetime.now(UTC)
    await asyncio.sleep(0.01)
    later = await send(cluster, 3, begin=3)
    async with consumer(cluster) as reading:
        assert await reading.offsets_for_time(between, FIRST) == {FIRST: 3}
        assert await reading.begin_offsets(FIRST) == {FIRST: 0}
        assert await reading.end_offsets(FIRST, SECOND) == {FIRST: 6, SECOND: 0}
        reading.assign([FIRST])
        await reading.seek_to_time(between)
        assert bodies(await polled(reading, 3)) == later
        with pytest.raises(ConfigError, match="without a zone"):
            await reading.seek_to_time(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("start", ["last", datetime.now(UTC) + timedelta(hours=1)])
async def test_a_new_group_starts_where_it_is_told(cluster: LiveCluster, start: "datetime") -> None:
    await send(cluster, 3)
    async with consumer(cluster, start=start) as reading:
        reading.assign([FIRST])
        assert await reading.position(FIRST) == 3


async def test_a_position_that_the_broker_no_longer_has_is_corrected(cluster: LiveCluster) -> None:
    sent = await send(cluster, 3)
    async with consumer(cluster) as reading:
        await reading.commit({FIRST: 1_000})
        reading.assign([FIRST])
        # OneLog, as RocketMQ, sends whoever is far past the end back to where the queue is.
        await eventually(lambda: _is_below(reading, 4), "another position")
        await reading.seek_to_begin()
        assert bodies(await polled(reading, 3)) == sent


async def _is_below(reading: AsyncPullConsumer, offset: int) -> bool:
    return await reading.position(FIRST) < offset
