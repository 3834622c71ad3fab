"""Messages that failed go back: to the retry topic, or to the dead letters."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.client.connection.instance import Instance
from onelog.client.consumer.push.send_back import SendBack, retry_topic
from onelog.client.message import ReceivedMessage
from onelog.errors import GroupNotFoundError
from onelog.message import Message, SysFlag, decode_properties
from onelog.record.compression import Compression, compress
from tests.client.consuming import received
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.watching import stored
from tests.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path, store__delay_levels="1s 1s 1s 1s 1s") as running:
        await running.create_topic("orders", 1)
        running.brokers[0].core.groups.require("billing")
        yield running


@pytest.fixture
async def instance(cluster: LiveCluster) -> AsyncIterator[Instance]:
    made = Instance({"nameserver": cluster.addresses})
    await made.start()
    yield made
    await made.close()


async def first(cluster: LiveCluster) -> ReceivedMessage:
    (message,) = await stored(cluster, "orders", 1)
    return ReceivedMessage(message, "broker-a")


async def arrived(cluster: LiveCluster, topic: str) -> Message:
    found: list[Message] = []

    async def is_there() -> bool:
        found[:] = await stored(cluster, topic, 1)
        return bool(found)

    await eventually(is_there, f"it is in {topic}")
    return found[0]


async def test_a_message_comes_again_with_its_history(
    cluster: LiveCluster, instance: Instance
) -> None:
    await cluster.send("orders", b"hello", TAGS="a", colour="red")
    message = await first(cluster)
    await SendBack(instance, "billing", None)(message)
    again = ReceivedMessage(await arrived(cluster, "%RETRY%billing"), "broker-a")
    assert (again.body, again.topic, again.delivery_attempt) == (b"hello", "orders", 2)
    assert (again.tags, again.properties) == ("a", {"colour": "red"})
    assert again.all_properties["ORIGIN_MESSAGE_ID"] == message.offset_id
    assert again.message_id == message.message_id


@pytest.mark.parametrize(("retries_max", "level"), [(0, 0), (5, -1)])
async def test_without_retries_left_it_is_a_dead_letter(
    cluster: LiveCluster, instance: Instance, retries_max: int, level: int
) -> None:
    await cluster.send("orders", b"hello")
    await SendBack(instance, "billing", retries_max)(await first(cluster), level)
    dead = await arrived(cluster, "%DLQ%billing")
    assert decode_properties(dead.properties)["RETRY_TOPIC"] == "orders"


async def test_a_message_that_is_gone_from_the_log_is_sent_anew(
    cluster: LiveCluster, instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    await instance.routes.get("orders")
    gone = received(5, size=20, TAGS="b", UNIQ_KEY="1234")
    gone.raw = gone.raw._replace(log_offset=1 << 40)  # type: ignore[arg-type]
    await SendBack(instance, "billing", 3)(gone, 1)
    assert "as a new message" in caplog.text
    again = ReceivedMessage(await arrived(cluster, "%RETRY%billing"), "broker-a")
    assert (again.body, again.topic, again.tags) == (gone.body, "orders", "b")
    assert (again.message_id, again.delivery_attempt) == ("1234", 2)


@pytest.mark.parametrize(("times", "level"), [(3, 0), (0, -1)])
async def test_what_is_sent_anew_without_retries_left_is_a_dead_letter(
    cluster: LiveCluster, instance: Instance, times: int, level: int
) -> None:
    await instance.routes.get("orders")
    message = received(5, times=times)
    await SendBack(instance, "billing", 3).send_anew(message, level)
    dead = await arrived(cluster, "%DLQ%billing")
    assert bytes(dead.body) == bytes(message.raw.body)


async def test_what_is_sent_anew_stays_compressed(cluster: LiveCluster, instance: Instance) -> None:
    await instance.routes.get("orders")
    packed = compress(b"x" * 5000, Compression.ZLIB)
    message = received(5)
    message.raw = message.raw._replace(
        body=memoryview(packed), sys_flag=SysFlag.COMPRESSED | Compression.ZLIB << 8
    )
    await SendBack(instance, "billing", None).send_anew(message, 1)
    again = ReceivedMessage(await arrived(cluster, "%RETRY%billing"), "broker-a")
    assert bytes(again.raw.body) == packed
    assert again.body == b"x" * 5000


async def test_a_broker_that_does_not_know_the_group_says_so(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, broker__auto_create_groups=False) as strict:
        await strict.create_topic("orders", 1)
        stranger = Instance({"nameserver": strict.addresses})
        await stranger.start()
        with pytest.raises(GroupNotFoundError, match="nobody"):
            await SendBack(stranger, "nobody", None)(received(0))
        await stranger.close()


def test_the_retry_topic_is_named_after_the_group() -> None:
    assert retry_topic("billing") == "%RETRY%billing"
