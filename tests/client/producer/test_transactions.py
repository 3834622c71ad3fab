"""Transactions of the SDK end as their producers say, whoever of the group is asked."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from onelog.client.message import Message, ReceivedMessage
from onelog.client.producer.producer import AsyncProducer, Producer
from onelog.client.producer.transactions import TransactionState
from onelog.errors import ConfigError, MessageError, OnelogError
from onelog.net.peer import Peer
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.watching import bodies, stored
from tests.waiting import eventually

COMMIT, ROLLBACK, UNKNOWN = TransactionState


def never(message: ReceivedMessage) -> TransactionState:
    """For producers that need not be asked: says nothing, and so changes nothing."""
    return UNKNOWN


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    """Brokers that ask about transactions all the time."""
    async with live_cluster(
        tmp_path,
        brokers=2,
        broker__transaction_timeout_ms=1,
        broker__transaction_check_interval_ms=20,
        broker__transaction_check_max=100_000,
    ) as cluster:
        for number in range(2):
            await cluster.create_topic("orders", 2, number)
        yield cluster


@pytest.fixture
async def quiet(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    """A broker that asks nobody."""
    async with live_cluster(tmp_path, broker__transaction_check_interval_ms=3_600_000) as cluster:
        await cluster.create_topic("orders", 2)
        yield cluster


async def test_only_what_is_committed_is_delivered(quiet: LiveCluster) -> None:
    seen: list[tuple[Message, str]] = []

    async def pay(message: Message, transaction_id: str) -> TransactionState:
        assert await bodies(quiet, "orders") == []  # Half a message is no message.
        seen.append((message, transaction_id))
        return COMMIT if message.body == b"paid" else ROLLBACK

    async with AsyncProducer("shop", nameserver=quiet.addresses, checker=never) as producer:
        failed = await producer.send_transaction(Message("orders", b"failed"), pay)
        sent = Message("orders", b"paid", tags="a", keys=["42"], properties={"who": "me"})
        paid = await producer.send_transaction(sent, pay)
        await eventually(lambda: delivered(quiet, [b"paid"]), "the delivery")
    assert (failed.state, paid.state) == (ROLLBACK, COMMIT)
    assert [message for message, _ in seen][1] is sent
    assert [given for _, given in seen] == [failed.transaction_id, paid.transaction_id]
    (raw,) = await stored(quiet, "orders")
    found = ReceivedMessage(raw, "broker-a")
    assert found.message_id == paid.message_id
    assert found.transaction_id == paid.transaction_id
    assert (found.tags, found.keys, found.properties) == ("a", ["42"], {"who": "me"})


async def delivered(cluster: LiveCluster, wanted: list[bytes]) -> bool:
    return sorted(await bodies(cluster, "orders")) == sorted(wanted)


async def test_a_plain_function_runs_in_a_thread(quiet: LiveCluster) -> None:
    threads: list[threading.Thread] = []

    def pay(message: Message, transaction_id: str) -> TransactionState:
        threads.append(threading.current_thread())
        return COMMIT

    async with AsyncProducer("shop", nameserver=quiet.addresses, checker=never) as producer:
        await producer.send_transaction(Message("orders", b"paid"), pay)
        await eventually(lambda: delivered(quiet, [b"paid"]), "the delivery")
    assert threads != [threading.current_thread()]


async def test_the_broker_asks_about_what_is_unknown_until_it_is_known(
    asking: LiveCluster,
) -> None:
    asked: list[ReceivedMessage] = []

    async def look_up(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        if len([each for each in asked if each.body == message.body]) < 3:
            return UNKNOWN
        return COMMIT if message.body == b"good" else ROLLBACK

    async def unsure(message: Message, transaction_id: str) -> TransactionState:
        return UNKNOWN

    async with AsyncProducer("shop", nameserver=asking.addresses, checker=look_up) as producer:
        good = await producer.send_transaction(
            Message("orders", b"good", tags="t", keys=["k"], properties={"p": "v"}), unsure
        )
        await producer.send_transaction(Message("orders", b"bad"), unsure)
        await eventually(lambda: delivered(asking, [b"good"]), "the delivery")
        await eventually(lambda: len(asked) >= 6, "three questions each")
    question = next(each for each in asked if each.body == b"good")
    assert question.topic == "orders"
    assert question.transaction_id == good.transaction_id
    assert question.message_id == good.message_id
    assert (question.tags, question.keys, question.properties) == ("t", ["k"], {"p": "v"})
    assert question.queue == good.receipt.queue
    assert await bodies(asking, "orders") == [b"good"]


async def test_a_checker_that_is_a_plain_function_does_not_stop_the_loop(
    asking: LiveCluster,
) -> None:
    loop_thread = threading.current_thread()
    seen: list[threading.Thread] = []
    go_on = threading.Event()

    def look_up(message: ReceivedMessage) -> TransactionState:
        seen.append(threading.current_thread())
        go_on.wait(20)
        return COMMIT

    async def unsure(message: Message, transaction_id: str) -> TransactionState:
        return UNKNOWN

    async with AsyncProducer("shop", nameserver=asking.addresses, checker=look_up) as producer:
        questions = count_questions(producer)
        await producer.send_transaction(Message("orders", b"slow"), unsure)
        await eventually(lambda: len(questions) >= 5, "questions again and again")
        await producer.send(Message("orders", b"meanwhile"))  # On the same loop.
        assert len(seen) == 1  # One answer is enough for all the questions.
        go_on.set()
        await eventually(lambda: delivered(asking, [b"meanwhile", b"slow"]), "the delivery")
    assert loop_thread not in seen


def count_questions(producer: AsyncProducer) -> list[Command]:
    """The questions of brokers, as they come from now on."""
    questions: list[Command] = []
    handlers = producer.instance.handlers
    handle = handlers[RequestCode.CHECK_TRANSACTION_STATE]

    def spy(peer: Peer, command: Command) -> None:
        questions.append(command)
        handle(peer, command)

    handlers[RequestCode.CHECK_TRANSACTION_STATE] = spy
    return questions


async def test_another_member_answers_for_one_that_died_between_half_and_commit(
    asking: LiveCluster,
) -> None:
    asked: list[bytes] = []

    def look_up(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return COMMIT if message.body in (b"1", b"3") else ROLLBACK

    victim = AsyncProducer("shop", nameserver=asking.addresses, checker=never)
    await victim.start()
    for number in range(4):
        await victim.transactions.prepare(Message("orders", b"%d" % number))
    await die(victim)
    # It sends nothing itself, so that brokers know of it only because it has a checker.
    async with AsyncProducer("shop", nameserver=asking.addresses, checker=look_up):
        await eventually(lambda: delivered(asking, [b"1", b"3"]), "the commits")
        await eventually(lambda: set(asked) == {b"0", b"1", b"2", b"3"}, "all questions")
    assert await delivered(asking, [b"1", b"3"])


async def die(producer: AsyncProducer) -> None:
    """End a producer as a crash would: connections break, and nobody says good-bye."""
    for address in (*producer.instance.presence.masters, *producer.instance.nodes.nameservers):
        peer = producer.instance.nodes.open_peer(address)
        if peer is not None:
            peer.connection.abort()
    producer.instance.producer_groups.clear()
    await producer.close()


async def test_a_member_of_another_group_is_not_asked(asking: LiveCluster) -> None:
    asked: list[bytes] = []

    def foreign(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return ROLLBACK

    async def unsure(message: Message, transaction_id: str) -> TransactionState:
        return UNKNOWN

    async with AsyncProducer("other", nameserver=asking.addresses, checker=foreign):
        async with AsyncProducer(
            "shop", nameserver=asking.addresses, checker=lambda message: COMMIT
        ) as producer:
            await producer.send_transaction(Message("orders", b"mine"), unsure)
            await eventually(lambda: delivered(asking, [b"mine"]), "the commit")
    assert asked == []


async def test_a_local_transaction_that_raises_leaves_the_question_to_the_checker(
    asking: LiveCluster,
) -> None:
    async def broken(message: Message, transaction_id: str) -> TransactionState:
        raise LookupError("the database is gone")

    async with AsyncProducer(
        "shop", nameserver=asking.addresses, checker=lambda message: COMMIT
    ) as producer:
        with pytest.raises(LookupError, match="database is gone"):
            await producer.send_transaction(Message("orders", b"done after all"), broken)
        await eventually(lambda: delivered(asking, [b"done after all"]), "the commit")


async def test_what_is_no_state_is_no_outcome(
    asking: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[object] = [None, True, "COMMIT", LookupError("not now"), COMMIT]

    def look_up(message: ReceivedMessage) -> TransactionState:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    async def careless(message: Message, transaction_id: str) -> TransactionState:
        return 8  # type: ignore[return-value]

    async with AsyncProducer("shop", nameserver=asking.addresses, checker=look_up) as producer:
        with pytest.raises(TypeError, match="must return a TransactionState, and returned 8"):
            await producer.send_transaction(Message("orders", b"order"), careless)
        await eventually(lambda: delivered(asking, [b"order"]), "the commit")
    assert answers == []
    assert "returned None" in caplog.text
    assert "not now" in caplog.text


async def test_a_local_transaction_that_is_cancelled_leaves_the_question_to_the_checker(
    asking: LiveCluster,
) -> None:
    began = asyncio.Event()

    async def endless(message: Message, transaction_id: str) -> TransactionState:
        began.set()
        await asyncio.sleep(3600)
        return COMMIT

    async with AsyncProducer(
        "shop", nameserver=asking.addresses, checker=lambda message: ROLLBACK
    ) as producer:
        sending = asyncio.ensure_future(
            producer.send_transaction(Message("orders", b"never"), endless)
        )
        await began.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await producer.send(Message("orders", b"later"))
    assert await bodies(asking, "orders") == [b"later"]


async def test_a_producer_without_a_checker_sends_no_transactions(quiet: LiveCluster) -> None:
    async with AsyncProducer("shop", nameserver=quiet.addresses) as producer:
        with pytest.raises(ConfigError, match="needs the option checker"):
            await producer.send_transaction(Message("orders", b"x"), lambda *_: COMMIT)


async def test_a_message_in_a_transaction_is_not_delayed(quiet: LiveCluster) -> None:
    message = Message("orders", b"x", delay=timedelta(seconds=1))
    async with AsyncProducer("shop", nameserver=quiet.addresses, checker=never) as producer:
        with pytest.raises(MessageError, match="cannot be delayed"):
            await producer.send_transaction(message, lambda *_: COMMIT)


async def test_a_half_message_that_cannot_be_sent_begins_no_transaction(tmp_path: Path) -> None:
    begun: list[str] = []

    def pay(message: Message, transaction_id: str) -> TransactionState:
        begun.append(transaction_id)
        return COMMIT

    async with live_cluster(tmp_path) as cluster:
        await cluster.create_topic("orders", 2)
        producer = AsyncProducer("shop", nameserver=cluster.addresses, checker=never, timeout=10)
        await producer.start()
        await producer.send(Message("orders", b"x"))
    with pytest.raises(OnelogError):
        await producer.send_transaction(Message("orders", b"x"), pay)
    await producer.close()
    assert begun == []


async def test_the_synchronous_producer_runs_local_transactions_in_the_thread_that_sends(
    asking: LiveCluster,
) -> None:
    threads: dict[bytes, threading.Thread] = {}

    def pay(message: Message, transaction_id: str) -> TransactionState:
        threads[message.body] = threading.current_thread()
        return UNKNOWN if message.body == b"unsure" else COMMIT

    async def pay_slowly(message: Message, transaction_id: str) -> TransactionState:
        return COMMIT

    def look_up(message: ReceivedMessage) -> TransactionState:
        threads[b"checker"] = threading.current_thread()
        return COMMIT

    def careless(message: Message, transaction_id: str) -> TransactionState:
        raise LookupError("no database")

    def work() -> list[TransactionState]:
        with Producer("shop", nameserver=asking.addresses, checker=look_up) as producer:
            threads[b"mine"] = threading.current_thread()
            done = [
                producer.send_transaction(Message("orders", b"paid"), pay),
                producer.send_transaction(Message("orders", b"slow"), pay_slowly),
                producer.send_transaction(Message("orders", b"unsure"), pay),
            ]
            with pytest.raises(LookupError):
                producer.send_transaction(Message("orders", b"raised"), careless)
            seen.wait(20)
            return [each.state for each in done]

    seen = threading.Event()
    working = asyncio.ensure_future(asyncio.to_thread(work))
    wanted = [b"paid", b"slow", b"unsure", b"raised"]
    await eventually(lambda: delivered(asking, wanted), "all four")
    seen.set()
    assert await working == [COMMIT, COMMIT, UNKNOWN]
    assert threads[b"paid"] is threads[b"unsure"] is threads[b"mine"]
    assert threads[b"checker"] not in (threads[b"mine"], threading.current_thread())
    assert "onelog-client" not in threads[b"checker"].name


async def test_transactions_in_a_namespace_are_asked_about_by_their_plain_names(
    asking: LiveCluster,
) -> None:
    asked: list[ReceivedMessage] = []

    def look_up(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return COMMIT

    async def unsure(message: Message, transaction_id: str) -> TransactionState:
        return UNKNOWN if message.body == b"unsure" else COMMIT

    await asking.create_topic("tenant%orders", 2)
    async with AsyncProducer(
        "shop", nameserver=asking.addresses, namespace="tenant", checker=look_up
    ) as producer:
        await producer.send_transaction(Message("orders", b"unsure"), unsure)
        await producer.send_transaction(Message("orders", b"sure"), unsure)

        async def is_delivered() -> bool:
            return sorted(await bodies(asking, "tenant%orders")) == [b"sure", b"unsure"]

        await eventually(is_delivered, "both")
    assert {message.topic for message in asked} == {"orders"}
    assert await bodies(asking, "orders") == []
