"""Positions are kept, with brokers or in a file, and read back as they were written."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.client.connection.instance import Instance
from onelog.client.consumer.offsets import BrokerOffsets, LocalOffsets, local_path
from onelog.client.message import Queue
from onelog.errors import NotSavedError, OnelogError, TopicNotFoundError
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.waiting import eventually

ZERO, ONE = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", 2)
        running.brokers[0].core.groups.require("billing")
        yield running


@pytest.fixture
async def instance(cluster: LiveCluster) -> AsyncIterator[Instance]:
    made = Instance({"nameserver": cluster.addresses})
    await made.start()
    yield made
    await made.close()


async def test_brokers_keep_positions(cluster: LiveCluster, instance: Instance) -> None:
    offsets = BrokerOffsets(instance, "billing")
    for _ in range(9):
        await cluster.send("orders", b"x")
    assert await offsets.read(ZERO) == 0
    await offsets.write({ZERO: 7, ONE: 0})
    assert await offsets.read(ZERO) == 7
    offsets.write_soon({ZERO: 9})
    await eventually(
        lambda: cluster.brokers[0].core.offsets.get("billing", "orders", 0) == 9, "the broker knows"
    )


async def test_a_queue_without_a_position_says_so(cluster: LiveCluster, instance: Instance) -> None:
    cluster.brokers[0].core.offsets._near_bytes = 0  # Nothing counts as young.
    await cluster.send("orders", b"x")
    assert await BrokerOffsets(instance, "billing").read(ZERO) is None


async def test_what_cannot_be_committed_is_logged_and_the_rest_is_committed(
    cluster: LiveCluster, instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = BrokerOffsets(instance, "billing")
    nowhere = Queue("gone", "broker-a", 0)
    with pytest.raises(TopicNotFoundError):
        await offsets.read(nowhere)
    await offsets.write({nowhere: 3, ZERO: 4})
    assert "offset 3" in caplog.text
    assert cluster.brokers[0].core.offsets.get("billing", "orders", 0) == 4
    offsets.write_soon({nowhere: 3, Queue("orders", "broker-z", 0): 3})
    with pytest.raises(OnelogError):
        await offsets.read(Queue("orders", "broker-z", 0))


async def test_a_file_keeps_positions(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "offsets.json"
    offsets = LocalOffsets(path)
    assert await offsets.read(ZERO) is None
    await offsets.write({ZERO: 5})
    offsets.write_soon({ONE: 6})
    offsets.write_soon({})
    await eventually(lambda: b'"queueId":1' in path.read_bytes(), "it is written")
    again = LocalOffsets(path)
    assert await again.read(ZERO) == 5
    assert await again.read(ONE) == 6
    assert await again.read(Queue("other", "broker-a", 0)) is None


async def test_the_file_has_the_form_of_the_java_clients(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,'
        '\n\t\t\t"topic":"orders"\n\t\t}:17\n\t}\n}'
    )
    assert await LocalOffsets(path).read(ONE) == 17


async def test_many_writes_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = LocalOffsets(path)
    queues = [Queue("orders", "broker-a", number) for number in range(20)]
    await asyncio.gather(*(offsets.write({queue: queue.queue_id}) for queue in queues))
    again = LocalOffsets(path)
    assert [await again.read(queue) for queue in queues] == list(range(20))
    assert await asyncio.to_thread(os.listdir, tmp_path) == [path.name]


async def test_a_file_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"offsetTable":')
    with pytest.raises(NotSavedError, match="cannot be read"):
        await LocalOffsets(path).load()


async def test_a_file_that_cannot_be_written_is_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = LocalOffsets(tmp_path / "folder" / "offsets.json")
    await offsets.load()
    (tmp_path / "folder").write_text("in the way")
    await offsets.write({ZERO: 1})
    assert "not saved" in caplog.text


def test_the_usual_place_is_one_for_each_group_and_client() -> None:
    places = {local_path(client, group) for client in (None, "a") for group in ("g", "h")}
    assert len(places) == 4
    assert all(place.is_relative_to(Path.home()) for place in places)
