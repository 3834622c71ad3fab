"""The asyncio push consumer against a live cluster: what users see of it."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Unpack

import pytest

from onelog.client.consumer.listening import AnyListener, RetryLater
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.message import ReceivedMessage
from onelog.client.options import ConsumerOptions
from onelog.errors import (
    ClientClosedError,
    ConfigError,
    FilterSyntaxError,
    InvalidGroupError,
    NameserversUnreachableError,
    WrongLoopError,
)
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.watching import bodies, stored
from tests.waiting import eventually

QUICK_RETRIES = " ".join(["1s"] * 18)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path, store__delay_levels=QUICK_RETRIES) as running:
        await running.create_topic("orders", 4)
        yield running


async def send(cluster: LiveCluster, start: int, stop: int, **properties: Any) -> None:
    for number in range(start, stop):
        await cluster.send("orders", b"%d" % number, number % 4, **properties)


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def numbers(self) -> list[int]:
        return sorted(int(message.body) for message in self.messages)


@contextlib.asynccontextmanager
async def consuming(
    cluster: LiveCluster, listener: AnyListener, tags: str = "*", **options: Unpack[ConsumerOptions]
) -> AsyncIterator[AsyncPushConsumer]:
    options["nameserver"] = cluster.addresses
    async with AsyncPushConsumer("billing", **options) as consumer:
        consumer.subscribe("orders", tags, listener=listener)
        await consumer.start()
        yield consumer


async def test_messages_reach_the_listener_and_are_done_with(cluster: LiveCluster) -> None:
    heard = Heard()
    async with consuming(cluster, heard) as consumer:
        await send(cluster, 0, 200, TAGS="paid", KEYS="k1 k2", colour="red")
        await eventually(lambda: len(heard.messages) == 200, "all are heard")
        assert heard.numbers == list(range(200))
        assert len(consumer.assigned) == 4
        assert set((await consumer.lag()).values()) == {0}
        message = heard.messages[0]
        assert (message.topic, message.tags, message.keys) == ("orders", "paid", ["k1", "k2"])
        assert message.properties == {"colour": "red"}
        assert (message.queue.broker, message.delivery_attempt) == ("broker-a", 1)


async def test_the_decorator_gives_the_listener_back_and_run_ends_with_stop(
    cluster: LiveCluster,
) -> None:
    heard: list[bytes] = []
    async with AsyncPushConsumer("billing", nameserver=cluster.addresses) as consumer:

        @consumer.subscribe("orders", tags="paid")
        async def bill(message: ReceivedMessage) -> None:
            heard.append(message.body)
            consumer.stop()

        await cluster.send("orders", b"1", TAGS="refused")
        await cluster.send("orders", b"2", TAGS="paid")
        assert bill.__name__ == "bill"
        async with asyncio.timeout(30):
            await consumer.run()
    assert heard == [b"2"]


async def test_only_wanted_tags_are_heard_and_the_others_do_not_stay_behind(
    cluster: LiveCluster,
) -> None:
    heard = Heard()
    async with consuming(cluster, heard, tags="Aa || c") as consumer:
        # "Aa" and "BB" have the same hash, so the broker sends both.
        for number, tag in enumerate(["Aa", "BB", "c", "d", "BB", "Aa", "d"]):
            await cluster.send("orders", b"%d" % number, TAGS=tag)
        await eventually(lambda: len(heard.messages) == 3, "the wanted ones are heard")
        await cluster.send("orders", b"7", TAGS="c")
        await eventually(lambda: heard.numbers == [0, 2, 5, 7], "the last one too")
        assert set((await consumer.lag()).values()) == {0}


async def test_a_condition_is_met(cluster: LiveCluster) -> None:
    heard = Heard()
    consumer = AsyncPushConsumer("billing", nameserver=cluster.addresses)
    async with consumer:
        consumer.subscribe("orders", sql="price > 10", listener=heard)
        await consumer.start()
        for number in range(20):
            await cluster.send("orders", b"%d" % number, number % 4, price=str(number))
        await eventually(lambda: len(heard.messages) == 9, "the dear ones are heard")
    assert heard.numbers == list(range(11, 20))


async def test_a_condition_that_cannot_be_read_is_refused_at_the_start(
    cluster: LiveCluster,
) -> None:
    consumer = AsyncPushConsumer("billing", nameserver=cluster.addresses)
    async with consumer:
        consumer.subscribe("orders", sql="price >", listener=Heard())
        with pytest.raises(FilterSyntaxError, match="the filter on orders"):
            await consumer.start()


async def test_batches(cluster: LiveCluster) -> None:
    sizes: Counter[int] = Counter()

    async def listener(batch: list[ReceivedMessage]) -> None:
        sizes[len(batch)] += 1

    await send(cluster, 0, 100)
    async with consuming(cluster, listener, start="first", batch_size=8) as consumer:
        await eventually(
            lambda: sum(size * count for size, count in sizes.items()) == 100, "all are heard"
        )
        assert max(sizes) == 8
        assert consumer.group == "billing"


async def test_members_that_come_and_go_lose_nothing(cluster: LiveCluster) -> None:
    heard = Heard()
    sending = asyncio.ensure_future(send(cluster, 0, 1500))
    async with consuming(cluster, heard, start="first") as first:
        await eventually(lambda: len(heard.messages) > 100, "the first works")
        async with consuming(cluster, heard, start="first") as second:
            await eventually(
                lambda: len(first.assigned) == 2 == len(second.assigned), "both have their share"
            )
            assert not set(first.assigned) & set(second.assigned)
            async with consuming(cluster, heard, start="first") as third:
                await eventually(
                    lambda: (
                        sorted(len(each.assigned) for each in (first, second, third)) == [1, 1, 2]
                    ),
                    "all have their share",
                )
                await first.close()
                await eventually(
                    lambda: len(second.assigned) == 2 == len(third.assigned),
                    "the others take over",
                )
                await sending
                await eventually(lambda: len(set(heard.numbers)) == 1500, "all are heard")
    # Each change of owner may repeat what was in hand, which is little.
    assert len(heard.numbers) - 1500 < 500


async def test_a_group_goes_on_where_it_ended(cluster: LiveCluster) -> None:
    heard = Heard()
    await send(cluster, 0, 100)
    async with consuming(cluster, heard, start="first"):
        await eventually(lambda: len(heard.messages) == 100, "the first half")
    await send(cluster, 100, 200)
    async with consuming(cluster, heard, start="first"):
        await eventually(lambda: len(heard.messages) >= 200, "the second half")
    assert heard.numbers == list(range(200))


async def test_a_listener_that_raises_gets_the_message_again_and_then_it_is_a_dead_letter(
    cluster: LiveCluster,
) -> None:
    tried: list[tuple[int, int]] = []
    heard = Heard()

    async def listener(message: ReceivedMessage) -> None:
        tried.append((int(message.body), message.delivery_attempt))
        assert message.topic == "orders"
        if int(message.body) == 3 or (int(message.body) == 5 and message.delivery_attempt < 2):
            raise ValueError("cannot bill")
        await heard(message)

    async with consuming(cluster, listener, retries_max=2) as consumer:
        await send(cluster, 0, 8)
        await eventually(lambda: (3, 3) in tried, "all tries")

        async def is_dead() -> bool:
            return await bodies(cluster, "%DLQ%billing", 1) == [b"3"]

        await eventually(is_dead, "it is a dead letter")
        assert heard.numbers == [0, 1, 2, 4, 5, 6, 7]
        assert [try_ for number, try_ in tried if number == 5] == [1, 2]
        assert set((await consumer.lag()).values()) == {0}
    (dead,) = await stored(cluster, "%DLQ%billing", 1)
    assert b"RETRY_TOPIC\x01orders\x02" in dead.properties


async def test_a_message_can_be_given_up_or_put_off(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def listener(message: ReceivedMessage) -> None:
        raise RetryLater("never mind", delay_level=-1)

    async with consuming(cluster, listener):
        await cluster.send("orders", b"1")

        async def is_dead() -> bool:
            return await bodies(cluster, "%DLQ%billing", 1) == [b"1"]

        await eventually(is_dead, "it is a dead letter")
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
    # A broker on a busy machine may say how long it was kept from its work.
    assert not [each for each in warnings if each.name.startswith("onelog.client")]


async def test_a_message_that_takes_too_long_comes_again(cluster: LiveCluster) -> None:
    attempts: list[int] = []
    hold = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        attempts.append(message.delivery_attempt)
        if message.delivery_attempt == 1:
            await hold.wait()

    async with consuming(cluster, listener, consume_timeout=0.2) as consumer:
        await cluster.send("orders", b"1")
        await eventually(lambda: attempts == [1, 2], "it came again")

        async def nothing_left() -> bool:
            return set((await consumer.lag()).values()) == {0}

        await eventually(nothing_left, "the first attempt blocks nothing")
        hold.set()


async def test_what_is_in_hand_is_finished_at_the_end(cluster: LiveCluster) -> None:
    heard = Heard()

    async def listener(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.01)
        await heard(message)

    await send(cluster, 0, 400)
    async with consuming(cluster, listener, start="first") as consumer:
        await eventually(lambda: len(heard.messages) > 20, "it works")
        await consumer.close()
    finished = heard.numbers
    again = Heard()
    async with consuming(cluster, again, start="first"):
        await eventually(lambda: len(again.messages) + len(finished) >= 400, "the rest")
    assert sorted(finished + again.numbers) == list(range(400))


async def test_listeners_that_hang_at_the_end_are_left_behind_and_repeated(
    cluster: LiveCluster,
) -> None:
    heard = Heard()

    async def hang(message: ReceivedMessage) -> None:
        await heard(message)
        await asyncio.Event().wait()

    await cluster.send("orders", b"1")
    async with consuming(cluster, hang, start="first") as consumer:
        await eventually(lambda: bool(heard.messages), "it hangs")
        async with asyncio.timeout(20):
            await consumer.close(0.1)
    again = Heard()
    async with consuming(cluster, again):
        await eventually(lambda: again.numbers == [1], "it comes again")


async def test_broadcasting_gives_all_to_everybody_and_remembers_where_each_is(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    one, two = Heard(), Heard()
    paths = [tmp_path / "a" / "one.json", tmp_path / "two.json"]
    async with (
        consuming(
            cluster, one, model="broadcasting", start="first", offsets_path=paths[0]
        ) as first,
        consuming(cluster, two, model="broadcasting", start="first", offsets_path=paths[1]),
    ):
        await send(cluster, 0, 50)
        await eventually(lambda: len(one.messages) + len(two.messages) == 100, "both hear all")
        assert len(first.assigned) == 4
        await first.commit()
    assert one.numbers == two.numbers == list(range(50))
    await send(cluster, 50, 60)
    again = Heard()
    async with consuming(
        cluster, again, model="broadcasting", start="first", offsets_path=paths[0]
    ):
        await eventually(lambda: len(again.messages) >= 10, "only the new ones")
    assert again.numbers == list(range(50, 60))


async def test_a_broadcast_that_fails_is_given_up(cluster: LiveCluster, tmp_path: Path) -> None:
    tried: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        tried.append(message.body)
        raise ValueError("no")

    async with consuming(
        cluster, listener, model="broadcasting", start="first", offsets_path=tmp_path / "o"
    ) as consumer:
        await cluster.send("orders", b"1")
        await cluster.send("orders", b"2")
        await eventually(lambda: len(tried) == 2, "both were tried")
        assert set((await consumer.lag()).values()) == {0}
    assert await bodies(cluster, "%DLQ%billing", 1) == []


async def test_subscribing_while_it_runs(cluster: LiveCluster) -> None:
    heard = Heard()
    async with consuming(cluster, Heard()) as consumer:
        await cluster.create_topic("refunds", 2)
        consumer.subscribe("refunds", listener=heard)
        await eventually(lambda: len(consumer.assigned) == 6, "it has the new queues")
        await cluster.send("refunds", b"7")
        await eventually(lambda: heard.numbers == [7], "the new topic is heard")


async def test_a_topic_that_does_not_exist_yet_is_consumed_once_it_does(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    consumer = AsyncPushConsumer("billing", nameserver=cluster.addresses, start="first")
    async with consumer:
        consumer.subscribe("later", listener=heard)
        await consumer.start()
        assert "later" in caplog.text
        await cluster.create_topic("later", 1)
        await cluster.send("later", b"1")
        await eventually(lambda: heard.numbers == [1], "it is heard")


async def test_more_queues_are_noticed(cluster: LiveCluster) -> None:
    heard = Heard()
    async with consuming(cluster, heard, start="first") as consumer:
        await cluster.create_topic("orders", 6)
        await consumer.instance.routes.refresh("orders")
        await eventually(lambda: len(consumer.assigned) == 6, "it has the new queues")
        await cluster.send("orders", b"5", 5)
        await eventually(lambda: heard.numbers == [5], "the new queue is heard")


@pytest.mark.parametrize("group", ["", "g" * 256])
def test_a_group_without_a_usable_name_is_refused(group: str) -> None:
    with pytest.raises(InvalidGroupError):
        AsyncPushConsumer(group)


async def test_wrong_use_is_answered_with_the_reason(cluster: LiveCluster) -> None:
    with pytest.raises(TypeError, match="did you mean 'orderly'"):
        AsyncPushConsumer("billing", ordered=True)  # type: ignore[call-arg]
    consumer = AsyncPushConsumer("billing", nameserver=cluster.addresses)
    with pytest.raises(ConfigError, match="nothing is subscribed to"):
        await consumer.start()
    with pytest.raises(ClientClosedError, match="not running"):
        await consumer.lag()
    await consumer.close()
    consumer.subscribe("orders", listener=Heard())
    with pytest.raises(ClientClosedError, match="was closed"):
        await consumer.start()


async def test_a_listener_cannot_close_its_own_consumer(cluster: LiveCluster) -> None:
    errors: list[BaseException] = []

    async def listener(message: ReceivedMessage) -> None:
        try:
            await consumer.close()
        except WrongLoopError as error:
            errors.append(error)

    async with consuming(cluster, listener) as consumer:
        await cluster.send("orders", b"1")
        await eventually(lambda: len(errors) == 1, "it is told so")


async def test_without_a_name_server_the_start_fails_and_names_it() -> None:
    consumer = AsyncPushConsumer("billing", nameserver="127.0.0.1:1", timeout=0.5)
    async with consumer:
        consumer.subscribe("orders", listener=Heard())
        with pytest.raises(NameserversUnreachableError, match=r"127\.0\.0\.1:1"):
            await consumer.start()


async def test_a_namespace_keeps_topics_apart(cluster: LiveCluster) -> None:
    heard = Heard()
    await cluster.create_topic("shop%orders", 1)
    async with consuming(cluster, heard, namespace="shop", start="first") as consumer:
        await cluster.send("orders", b"1")
        await cluster.send("shop%orders", b"2")
        await eventually(lambda: heard.numbers == [2], "that of the namespace is heard")
        assert consumer.group == "shop%billing"
