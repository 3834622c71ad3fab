"""RocketMQ's own Python client: producers and consumers of every kind."""

import threading
import time
from pathlib import Path

import pytest
import rocketmq

from tests.gateways.grpc.live import (
    SECONDS,
    Listener,
    address,
    grpc_broker,
    in_thread,
    make_group,
    make_topic,
    message,
    producer,
    push_consumer,
    receive,
    simple_consumer,
)


async def test_messages_come_with_all_that_they_were_sent_with(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "plain")

        def work() -> None:
            with producer(at, topic) as sending, simple_consumer(at, "readers", topic) as reading:
                receipt = sending.send(message(topic, b"hello", tag="a", key="k1", colour="red"))
                assert receipt.message_id
                (got,) = receive(reading, 1)
                assert (got.body, got.tag, list(got.keys)) == (b"hello", "a", ["k1"])
                assert dict(got.properties) == {"colour": "red"}
                assert got.message_id == receipt.message_id
                assert got.delivery_attempt == 1
                reading.ack(got)
                assert receive(reading, 1, seconds=1.5) == []

        await in_thread(work)


async def test_messages_of_a_group_stay_in_order(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "ordered", "FIFO")
        group = make_group(server, "in_order", consume_message_orderly=True)
        listener = Listener(40)

        def work() -> None:
            with producer(at, topic) as sending:
                for number in range(20):
                    for name in ("a", "b"):
                        sending.send(message(topic, f"{name}{number}".encode(), group=name))
            with push_consumer(at, group, topic, listener):
                assert listener.enough.wait(SECONDS)

        await in_thread(work)
        for name in ("a", "b"):
            mine = [each.decode() for each in listener.bodies if each[:1].decode() == name]
            assert mine == [f"{name}{number}" for number in range(20)]


async def test_a_timed_message_comes_then_and_one_that_is_recalled_never(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "timed", "DELAY")

        def work() -> None:
            with producer(at, topic) as sending, simple_consumer(at, "waiters", topic) as reading:
                receive(reading, 1, seconds=0.5)
                kept = message(topic, b"kept", delay_s=2)
                sending.send(kept)
                taken_back = sending.send(message(topic, b"taken back", delay_s=3))
                recalled = sending.recall_message(topic, taken_back.recall_handle)
                assert recalled == taken_back.message_id
                (got,) = receive(reading, 1)
                assert got.body == b"kept"
                reading.ack(got)
                assert receive(reading, 1, seconds=3) == []
                with pytest.raises(Exception, match="recall"):
                    sending.recall_message(topic, taken_back.recall_handle)

        await in_thread(work)


class Checker(rocketmq.TransactionChecker):  # type: ignore[misc]
    """Commits what was left open; a busy machine may be asked about the others, too."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.was_asked = threading.Event()

    def check(self, message: rocketmq.Message) -> rocketmq.TransactionResolution:
        """Yes, or no answer."""
        if message.body != b"left open":
            raise LookupError(f"{message.body} is not for me to decide")
        self.asked.append(message.message_id)
        self.was_asked.set()
        return rocketmq.TransactionResolution.COMMIT


async def test_transactions_are_committed_rolled_back_or_asked_about(tmp_path: Path) -> None:
    settings = {"broker__transaction_timeout_ms": 500, "broker__transaction_check_interval_ms": 500}
    async with grpc_broker(tmp_path, **settings) as server:
        at, topic = address(server), make_topic(server, "deals", "TRANSACTION")
        checker = Checker()

        def work() -> None:
            with (
                producer(at, topic, checker=checker) as sending,
                simple_consumer(at, "dealers", topic) as reading,
            ):
                receive(reading, 1, seconds=0.5)
                ends = {}
                for name in ("committed", "rolled back", "left open"):
                    ends[name] = sending.begin_transaction()
                    sending.send(message(topic, name.encode()), ends[name])
                ends["committed"].commit()
                ends["rolled back"].rollback()
                assert checker.was_asked.wait(SECONDS)
                got = receive(reading, 2)
                assert sorted(bytes(each.body) for each in got) == [b"committed", b"left open"]
                assert checker.asked[0] == ends["left open"].message_id
                for each in got:
                    reading.ack(each)
                assert receive(reading, 1, seconds=1) == []

        await in_thread(work)


async def test_a_push_consumer_tries_again_what_its_listener_failed_with(tmp_path: Path) -> None:
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [200, 200, 200, 200]}}
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "work")
        group = make_group(server, "workers", retry_policy=policy)
        listener = Listener(5, fail_times=2)

        def work() -> None:
            with producer(at, topic) as sending:
                for number in range(5):
                    sending.send(message(topic, b"%d" % number))
            with push_consumer(at, group, topic, listener):
                assert listener.enough.wait(SECONDS)

        await in_thread(work)
        assert sorted(listener.bodies) == [b"%d" % number for number in range(5)]
        assert sorted(each.delivery_attempt for each in listener.got) == [1, 1, 1, 2, 2]


async def test_a_message_comes_again_when_its_time_is_up_or_changed(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "again")

        def work() -> None:
            with producer(at, topic) as sending, simple_consumer(at, "slow", topic) as reading:
                receive(reading, 1, seconds=0.5)
                sending.send(message(topic, b"one"))
                (first,) = receive(reading, 1, invisible_s=1)
                (second,) = receive(reading, 1, invisible_s=60)
                assert (first.delivery_attempt, second.delivery_attempt) == (1, 2)
                with pytest.raises(Exception, match="receipt"):
                    reading.ack(first)
                reading.change_invisible_duration(second, 1)
                (third,) = receive(reading, 1)
                assert third.delivery_attempt == 3
                reading.ack(third)

        await in_thread(work)


async def test_only_messages_with_the_tags_come_that_were_asked_for(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "tagged")

        def work() -> None:
            # "Aa" and "BB" have the same hash.
            with (
                producer(at, topic) as sending,
                simple_consumer(at, "choosy", topic, "Aa || c") as reading,
            ):
                receive(reading, 1, seconds=0.5)
                for tag in ("Aa", "BB", "c", "d"):
                    sending.send(message(topic, tag.encode(), tag=tag))
                got = receive(reading, 3, seconds=4)
                assert sorted(each.tag for each in got) == ["Aa", "c"]

        await in_thread(work)


async def test_a_topic_takes_only_messages_of_its_type(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "only_plain")

        def work() -> None:
            with producer(at, topic) as sending:
                for wrong in (message(topic, b"x", group="g"), message(topic, b"x", delay_s=5)):
                    with pytest.raises(Exception, match=r"type|Type"):
                        sending.send(wrong)
                with pytest.raises(Exception, match="nowhere"):
                    sending.send(message("nowhere", b"x"))

        await in_thread(work)


async def test_a_lease_is_renewed_for_a_listener_that_takes_long(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, grpc__invisible_ms=1_500) as server:
        at, topic = address(server), make_topic(server, "long")
        made: list[int] = []

        class Slow(Listener):
            def consume(self, message: rocketmq.Message) -> rocketmq.ConsumeResult:
                made.append(message.delivery_attempt)
                time.sleep(4)
                return super().consume(message)

        listener = Slow(1)

        def work() -> None:
            with producer(at, topic) as sending:
                sending.send(message(topic, b"slow"))
            with push_consumer(at, "patient", topic, listener):
                assert listener.enough.wait(SECONDS)
                time.sleep(0.5)

        await in_thread(work)
        assert made == [1]
        assert not server.core.leases


async def test_a_namespace_keeps_clients_apart(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at = address(server)
        make_topic(server, "shared")
        make_topic(server, "tenant%shared")

        def work() -> None:
            with (
                producer(at, "shared", namespace="tenant") as sending,
                simple_consumer(at, "g", "shared", namespace="tenant") as reading,
                simple_consumer(at, "g", "shared") as outside,
            ):
                receive(reading, 1, seconds=0.5)
                receive(outside, 1, seconds=0.5)
                sending.send(message("shared", b"private"))
                (got,) = receive(reading, 1)
                assert (got.topic, got.body) == ("shared", b"private")
                assert receive(outside, 1, seconds=1) == []

        await in_thread(work)
