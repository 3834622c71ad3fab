"""The producer for threads: the same behaviour, from many threads, and nothing that hangs.

The brokers run on the test's event loop, so what waits for them runs in threads.
"""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from onelog.client.connection import background
from onelog.client.message import Message, Receipt
from onelog.client.producer.producer import Producer
from onelog.errors import (
    ClientClosedError,
    MessageError,
    MessageTooLargeError,
    OnelogError,
    SendFailedError,
    WrongLoopError,
)
from tests.client.forking import in_a_child
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.scripted import hang_up, knowing, route_data, scripted, silent
from tests.client.watching import bodies, stored
from tests.waiting import eventually


@pytest.fixture
async def producer(cluster: LiveCluster) -> AsyncIterator[Producer]:
    await cluster.create_topic("orders", queues=4)
    running = Producer("shop", nameserver=cluster.addresses, timeout=20)
    await asyncio.to_thread(running.start)
    yield running
    await asyncio.to_thread(running.close)


async def test_a_message_is_sent_and_a_receipt_returned(
    cluster: LiveCluster, producer: Producer
) -> None:
    def use() -> Receipt:
        return producer.send(Message("orders", b"hello", keys="42"), order_key="1")

    receipt = await asyncio.to_thread(use)
    (record,) = await stored(cluster, "orders")
    assert (bytes(record.body), record.unique_key) == (b"hello", receipt.message_id)
    assert receipt.offset == record.queue_offset
    assert producer.group == "shop"


async def test_many_threads_send_at_a_time(cluster: LiveCluster, producer: Producer) -> None:
    def use(thread: int) -> list[Receipt]:
        return [producer.send(Message("orders", b"%d-%d" % (thread, n))) for n in range(25)]

    with ThreadPoolExecutor(16) as pool:
        loop = asyncio.get_running_loop()
        lists = await asyncio.gather(*(loop.run_in_executor(pool, use, n) for n in range(16)))
    receipts = [receipt for each in lists for receipt in each]
    assert len({receipt.message_id for receipt in receipts}) == 400
    assert len(set(await bodies(cluster, "orders"))) == 400
    for each in lists:  # What one thread sends to a queue stays in its order.
        by_queue: dict[object, list[int]] = {}
        for receipt in each:
            by_queue.setdefault(receipt.queue, []).append(receipt.offset)
        assert all(offsets == sorted(offsets) for offsets in by_queue.values())


async def test_futures_and_callbacks_get_receipts(producer: Producer) -> None:
    called: list[Receipt | BaseException] = []

    def use() -> list[Receipt]:
        futures = [
            producer.send_async(Message("orders", b"%d" % n), called.append) for n in range(50)
        ]
        return [future.result(20) for future in futures]

    receipts = await asyncio.to_thread(use)
    await eventually(lambda: len(called) == 50, "50 calls")
    assert sorted(receipts) == sorted(called)  # type: ignore[type-var]


async def test_futures_and_callbacks_get_errors(producer: Producer) -> None:
    called: list[Receipt | BaseException] = []

    def use() -> BaseException | None:
        future = producer.send_async(Message("orders", bytes(5 << 20)), called.append)
        return future.exception(20)

    error = await asyncio.to_thread(use)
    assert isinstance(error, MessageTooLargeError)
    assert called == [error]


async def test_a_future_may_be_cancelled(producer: Producer) -> None:
    def use() -> Receipt:
        producer.send_async(Message("orders", b"x")).cancel()
        return producer.send(Message("orders", b"y"))

    assert (await asyncio.to_thread(use)).offset >= 0


async def test_the_other_ways_to_send(cluster: LiveCluster, producer: Producer) -> None:
    def use() -> None:
        queue = producer.queues("orders")[1]
        batch = producer.send_batch([Message("orders", b"a"), Message("orders", b"b")], queue=queue)
        assert batch.queue == queue
        producer.send_oneway(Message("orders", b"c"), queue=queue)
        late = producer.send(Message("orders", b"d", delay=timedelta(hours=1)))
        assert late.recall_handle is not None
        assert producer.recall("orders", late.recall_handle) == late.message_id

    await asyncio.to_thread(use)

    async def are_there() -> bool:
        return sorted(await bodies(cluster, "orders")) == [b"a", b"b", b"c"]

    await eventually(are_there, "three messages")


async def test_errors_are_those_of_the_asyncio_producer(producer: Producer) -> None:
    def use() -> None:
        producer.send(Message("orders", b"x"))
        queue = producer.queues("orders")[0]
        with pytest.raises(MessageError, match="exclude one another"):
            producer.send(Message("orders", b"x"), order_key="1", queue=queue)
        with pytest.raises(TypeError, match="order_key must be a text"):
            producer.send(Message("orders", b"x"), order_key=1)  # type: ignore[arg-type]
        with pytest.raises(MessageTooLargeError):
            producer.send(Message("orders", bytes(5 << 20)))

    await asyncio.to_thread(use)


async def test_a_broker_that_fails_is_left_for_another(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster:
        for broker in range(2):
            await cluster.create_topic("orders", queues=2, broker=broker)

        def use(producer: Producer) -> set[str]:
            return {producer.send(Message("orders", b"x")).queue.broker for _ in range(8)}

        with_brokers = Producer("shop", nameserver=cluster.addresses, timeout=20)
        await asyncio.to_thread(with_brokers.start)
        assert await asyncio.to_thread(use, with_brokers) == {"broker-a", "broker-b"}
        for listener in cluster.brokers[0]._listeners:
            await listener.close()
        assert await asyncio.to_thread(use, with_brokers) == {"broker-b"}
        await asyncio.to_thread(with_brokers.close)


async def test_nobody_there_is_an_error_that_names_the_cause_and_the_address() -> None:
    async with scripted(hang_up) as broker:
        async with scripted(knowing({"orders": route_data({"a": broker.address})})) as nameserver:

            def use() -> str:
                with Producer("shop", nameserver=str(nameserver.address), retries=1) as producer:
                    with pytest.raises(SendFailedError, match="in 2 tries") as caught:
                        producer.send(Message("orders", b"x"))
                    return str(caught.value)

            assert f"a ({broker.address}) closed the connection" in await asyncio.to_thread(use)


async def test_a_send_to_a_half_dead_broker_ends_in_time() -> None:
    async with scripted(silent) as broker:
        async with scripted(knowing({"orders": route_data({"a": broker.address})})) as nameserver:

            def use() -> None:
                with Producer("shop", nameserver=str(nameserver.address), timeout=0.5) as producer:
                    with pytest.raises(SendFailedError, match="did not answer within"):
                        producer.send(Message("orders", b"x"))

            async with asyncio.timeout(20):
                await asyncio.to_thread(use)


async def test_a_producer_closed_by_one_thread_ends_the_sends_of_the_others() -> None:
    async with scripted(silent) as broker:
        async with scripted(knowing({"orders": route_data({"a": broker.address})})) as nameserver:
            producer = Producer("shop", nameserver=str(nameserver.address), timeout=0.5)
            await asyncio.to_thread(producer.start)
            errors: list[OnelogError] = []

            def use() -> None:
                try:
                    producer.send(Message("orders", b"x"), timeout=3600)
                except OnelogError as error:
                    errors.append(error)

            thread = threading.Thread(target=use)
            thread.start()
            await eventually(lambda: bool(broker.sends()), "a message on its way")
            await asyncio.to_thread(producer.close)
            await asyncio.to_thread(thread.join, 20)
            assert not thread.is_alive()
            assert isinstance(errors[0], ClientClosedError)


def test_a_producer_that_is_not_open_says_so() -> None:
    producer = Producer("shop", nameserver="127.0.0.1:1")
    with pytest.raises(ClientClosedError, match="not started: use it in `with`"):
        producer.send(Message("orders", b"x"))
    with pytest.raises(ClientClosedError, match="not started"):
        producer.send_batch([Message("orders", b"x")])
    with producer:
        pass
    producer.close()
    with pytest.raises(ClientClosedError, match="was closed"):
        producer.send_async(Message("orders", b"x"))
    with pytest.raises(ClientClosedError, match="make a new one"):
        producer.start()


def test_a_synchronous_send_on_the_background_loop_is_refused() -> None:
    with Producer("shop", nameserver="127.0.0.1:1") as producer:

        async def misuse() -> None:
            producer.send(Message("orders", b"x"))

        with pytest.raises(WrongLoopError, match="would wait for itself"):
            background.run(misuse())


def test_options_are_checked_under_its_own_name() -> None:
    with pytest.raises(TypeError, match=r"^Producer\(\) has no option 'timeouts'; did you mean"):
        Producer("shop", timeouts=1)  # type: ignore[call-arg]


async def test_a_forked_child_needs_a_producer_of_its_own(
    cluster: LiveCluster, producer: Producer
) -> None:
    await asyncio.to_thread(producer.send, Message("orders", b"parent"))
    addresses = cluster.addresses

    def use() -> str:
        try:
            producer.send(Message("orders", b"x"))
        except OnelogError as error:
            said = f"{type(error).__name__}: {error}"
        producer.close()
        with Producer("shop", nameserver=addresses, timeout=20) as own:
            own.send(Message("orders", b"child"))
        return said

    said = await asyncio.to_thread(in_a_child, use)
    assert said.startswith("ForkedError: this client was made before the process forked")
    await asyncio.to_thread(producer.send, Message("orders", b"parent again"))
    assert sorted(await bodies(cluster, "orders")) == [b"child", b"parent", b"parent again"]


async def test_ctrl_c_ends_a_send_that_waits_and_leaves_the_producer_usable() -> None:
    script = textwrap.dedent(
        """
        import sys
        from onelog.client import Message, Producer

        producer = Producer("shop", nameserver=sys.argv[1], timeout=3600)
        producer.start()
        print("sending", flush=True)
        try:
            producer.send(Message("orders", b"x"))
        except KeyboardInterrupt:
            print("interrupted", producer.queues("orders")[0].broker, flush=True)
        """
    )
    async with scripted(silent) as broker:
        async with scripted(knowing({"orders": route_data({"a": broker.address})})) as nameserver:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-W",
                "error",
                "-c",
                script,
                str(nameserver.address),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            await eventually(lambda: bool(broker.sends()), "a message on its way", 60)
            process.send_signal(signal.SIGINT)
            # The producer is not closed: the end of the interpreter must not wait for it either.
            out, err = await asyncio.wait_for(process.communicate(), 60)
            assert (out, err, process.returncode) == (b"sending\ninterrupted a\n", b"", 0)
