"""Groups with members of both protocols, and what RocketMQ's tools ask gRPC members."""

import asyncio
import zlib
from pathlib import Path

import pytest

from onelog.client import AsyncPushConsumer, ReceivedMessage
from onelog.wire.remoting.clients import ConsumerRunningInfo
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.stats import DirectConsumption
from tests.client.live_cluster import live_cluster
from tests.gateways.grpc.live import (
    Listener,
    address,
    grpc_broker,
    in_thread,
    make_topic,
    message,
    producer,
    push_consumer,
    receive,
    simple_consumer,
)
from tests.gateways.grpc.raw import RawClient
from tests.gateways.remoting.live import client
from tests.waiting import wait_until

GRPC = {"grpc__port": -1, "grpc__poll_min_ms": 100, "grpc__invisible_min_ms": 100}


@pytest.mark.parametrize("pop", [True, False], ids=["leasing", "pulling"])
async def test_members_of_both_protocols_share_what_a_topic_has(tmp_path: Path, pop: bool) -> None:
    async with live_cluster(tmp_path, **GRPC) as cluster:
        server = cluster.brokers[0]
        at, topic = address(server), make_topic(server, "shared")
        heard: list[bytes] = []
        listener = Listener(10_000)

        async def listen(received: ReceivedMessage) -> None:
            heard.append(received.body)
            await asyncio.sleep(0.005)

        def are_waiting() -> bool:
            """Whether both wait for messages; who pulls leaves the other half of the queues."""
            live = server.core.members.group("both")
            pulled = [] if live is None else [name for name, _ in live.pulled if name == topic]
            waiting = server.core.lending.held("both", topic, -1)
            return waiting >= 2 if pop else waiting >= 1 and len(pulled) == 2

        def begin() -> None:
            wait_until(lambda: server.core.lending.held("both", topic, -1) >= 1)

        def work() -> None:
            with producer(at, topic) as sending:
                wait_until(are_waiting)
                for number in range(300):
                    sending.send(message(topic, b"%d" % number))
                wait_until(lambda: len(heard) + len(listener.got) >= 300)

        async with AsyncPushConsumer(
            "both", nameserver=cluster.addresses, pop=pop, start="first", threads=2
        ) as remoting:
            remoting.subscribe(topic, listener=listen)
            leasing = push_consumer(at, "both", topic, listener)
            await in_thread(leasing.__enter__)
            try:
                await in_thread(begin)
                await remoting.start()
                await in_thread(work)
            finally:
                await in_thread(leasing.__exit__, None, None, None)
        assert heard
        assert listener.got
        assert sorted([*heard, *listener.bodies]) == sorted(b"%d" % each for each in range(300))


async def test_a_receipt_of_one_protocol_is_good_in_the_other(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, client(server) as remoting:
        at, topic = address(server), make_topic(server, "receipts", queues=1)

        def take() -> str:
            with producer(at, topic) as sending, simple_consumer(at, "g", topic) as reading:
                receive(reading, 1, seconds=0.3)
                sending.send(message(topic, b"x"))
                (got,) = receive(reading, 1)
                return str(got.receipt_handle)

        receipt = await in_thread(take)
        answer = await remoting.ask(
            RequestCode.ACK_MESSAGE,
            consumerGroup="g",
            topic=topic,
            queueId=0,
            offset=0,
            extraInfo=receipt,
        )
        assert answer.code == 0, answer.remark
        assert not server.core.leases


async def test_tools_see_what_a_member_does_and_have_it_try_a_message(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, client(server) as remoting:
        topic = make_topic(server, "asked", queues=1)
        sent = await remoting.send(topic, b"try me", {"UNIQ_KEY": "K"})
        async with RawClient(address(server), "asked-client") as member:
            await member.introduce_consumer("askers", topic)
            about = {"consumerGroup": "askers", "clientId": "asked-client"}
            asking = asyncio.create_task(
                remoting.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true", **about)
            )
            command = await member.hear()
            nonce = command.print_thread_stack_trace_command.nonce
            await member.tell(thread_stack_trace={"nonce": nonce, "thread_stack_trace": "main: x"})
            assert ConsumerRunningInfo.decode((await asking).body).jstack == "main: x"

            asking = asyncio.create_task(
                remoting.ask(
                    RequestCode.CONSUME_MESSAGE_DIRECTLY,
                    msgId=sent.ext["msgId"],
                    topic=topic,
                    **about,
                )
            )
            command = await member.hear()
            verify = command.verify_message_command
            assert verify.message.body == b"try me"
            await member.tell(verify_message_result={"nonce": verify.nonce})
            tried = DirectConsumption.decode((await asking).body)
            assert tried.consume_result == "CR_SUCCESS"


async def test_compressed_bodies_of_remoting_clients_arrive_plain(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, client(server) as remoting:
        topic = make_topic(server, "packed", queues=1)
        await remoting.send(topic, zlib.compress(b"x" * 5000), {"UNIQ_KEY": "K"}, f=1)

        def take() -> bytes:
            with simple_consumer(address(server), "g", topic) as reading:
                (got,) = receive(reading, 1)
                assert not got.corrupted
                return bytes(got.body)

        assert await in_thread(take) == b"x" * 5000
