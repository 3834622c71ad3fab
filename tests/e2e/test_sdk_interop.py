"""The SDK and the official Java client, talking to each other through OneLog and through RocketMQ.

Servers of this module's own: after any transaction a thread of RocketMQ 5.5.0 keeps one core busy
(apache/rocketmq issue 10966), which would slow down whoever uses it next.
"""

import base64
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from onelog.client.consumer.push.consumer import PushConsumer
from onelog.client.extras.trace_hook import TraceHook
from onelog.client.message import Message, ReceivedMessage
from onelog.client.producer.producer import Producer
from onelog.client.producer.transactions import TransactionState
from onelog.errors import ReplyFailedError, RequestTimeoutError
from tests.e2e import payload
from tests.e2e.conftest import Server
from tests.e2e.java_clients import Facts, Scenario, mqadmin, run_scenario
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import wait_until
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

Form = Literal["zlib", "lz4", "zstd"]
COLOUR = "grün, blue: 你好"
LARGE_BYTES = 20_000
FORMS_OF_CLIENT: dict[str, tuple[str, ...]] = {"4.9.8": ("zlib",), "5.5.0": get_args(Form)}
"""Java clients before 5.0 write zlib only, and read nothing else."""
SYSTEM_PROPERTIES = {"WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER", "UNIQ_KEY", "MIN_OFFSET"}


@pytest.fixture(scope="module", params=[OnelogPeer, RocketmqPeer], ids=["onelog", "rocketmq"])
def between(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The server that both sides talk through."""
    with request.param(tmp_path_factory.mktemp("interop")) as running:
        yield running


class Reader:
    """A push consumer of the SDK that keeps what it gets."""

    def __init__(self, server: Server, topic: str, group: str | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._consumer = PushConsumer(
            group or f"{topic}-python", nameserver=server.nameservers, start="first"
        )
        self._consumer.subscribe(topic, listener=self.messages.append)

    def __enter__(self) -> "Reader":
        self._consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def wait_for(self, count: int, timeout_s: float = 60) -> list[ReceivedMessage]:
        wait_until(lambda: len(self.messages) >= count, f"{count} messages", timeout_s)
        return self.messages


def forms() -> list[Any]:
    return [
        pytest.param(client, form, id=f"{client}-{form}")
        for client, forms in FORMS_OF_CLIENT.items()
        for form in forms
    ]


@pytest.mark.parametrize(("version", "form"), forms())
def test_what_java_sends_python_reads(
    between: Server, version: str, form: Form, topic: str, tmp_path: Path
) -> None:
    facts = run_scenario(
        tmp_path,
        version,
        "interop-send",
        between.nameservers,
        topic=topic,
        compression=form.upper(),
        messages=10,
        large_bytes=LARGE_BYTES,
    )
    sent = [each for each in facts if each["event"] == "sent"]
    (batch,) = [each for each in facts if each["event"] == "batch"]
    with Reader(between, topic) as reader:
        found = {payload.number(each.body): each for each in reader.wait_for(13)}
    assert sorted(found) == list(range(13))
    for number, message in found.items():
        large = number < 10 and number % 2 == 1
        assert len(message.body) == (LARGE_BYTES if large else payload.HEAD_BYTES)
        assert bool(message.raw.sys_flag & 1) == large
        assert message.topic == topic
        assert message.tags == f"tag{number % 3}"
        assert message.keys == [f"key{number}", "other"]
        assert message.flag == number
        assert message.properties == {"colour": COLOUR, "number": str(number)}
        assert message.delivery_attempt == 1
        if number < 10:
            seen = (message.message_id, message.offset_id, message.queue.queue_id, message.offset)
            given = sent[number]
            assert seen == (given["id"], given["offset_id"], given["queue"], given["offset"])
    assert [found[n].message_id for n in (10, 11, 12)] == batch["id"].split(",")
    assert found[10].offset == batch["offset"]


@pytest.mark.parametrize(("version", "form"), forms())
def test_what_python_sends_java_reads(
    between: Server, version: str, form: Form, topic: str, tmp_path: Path
) -> None:
    with Producer(
        f"{topic}-python", nameserver=between.nameservers, compression=form, timeout=10
    ) as producer:
        receipts = [producer.send(dressed(topic, number)) for number in range(10)]
        batch = producer.send_batch([dressed(topic, number, 0) for number in (10, 11, 12)])
    read = run_scenario(
        tmp_path, version, "interop-read", between.nameservers, topic=topic, messages=13
    )
    assert read[-1]["in_time"]
    found = {each["number"]: each for each in read[:-1]}
    assert sorted(found) == list(range(13))
    for number, facts in found.items():
        message = dressed(topic, number, None if number < 10 else 0)
        assert base64.b64decode(facts["body"]) == message.body
        assert facts["tags"] == message.tags
        assert facts["keys"] == " ".join(message.keys)
        assert facts["flag"] == message.flag
        own = {k: v for k, v in facts["properties"].items() if k in message.properties}
        assert own == message.properties
        added = facts["properties"].keys() - message.properties.keys() - {"TAGS", "KEYS"}
        assert added <= SYSTEM_PROPERTIES | {"MAX_OFFSET", "CONSUME_START_TIME"}
        if number < 10:
            receipt = receipts[number]
            assert (facts["id"], facts["queue"], facts["offset"]) == (
                receipt.message_id,
                receipt.queue.queue_id,
                receipt.offset,
            )
    assert [found[n]["id"] for n in (10, 11, 12)] == batch.message_id.split(",")


def dressed(topic: str, number: int, size: int | None = None) -> Message:
    large = LARGE_BYTES if number % 2 == 1 else 0
    return Message(
        topic,
        payload.body(number, large if size is None else size),
        tags=f"tag{number % 3}",
        keys=[f"key{number}", "other"],
        flag=number,
        properties={"colour": COLOUR, "number": str(number)},
    )


def test_transactions_of_java_are_read_by_python_when_they_are_committed(
    between: Server, client: str, topic: str, tmp_path: Path
) -> None:
    with Scenario(
        tmp_path, client, "interop-send-transactions", between.nameservers, topic=topic, messages=8
    ) as sending:
        sent: list[Facts] = []
        for facts in sending.lines(60):
            if facts["event"] == "waiting":
                break
            sent.append(facts)
        with Reader(between, topic) as reader:
            found = {payload.number(each.body): each for each in reader.wait_for(4, 120)}
    assert sorted(found) == [0, 2, 4, 6]  # 0 and 6 only since the broker asked.
    assert len(reader.messages) == 4
    for number, message in found.items():
        assert message.message_id == sent[number]["id"]
        assert message.transaction_id == sent[number]["transaction_id"]
        assert (message.tags, message.keys) == (f"t{number}", [f"k{number}"])


def test_transactions_of_python_are_read_by_java_when_they_are_committed(
    between: Server, client: str, topic: str, tmp_path: Path
) -> None:
    asked: list[int] = []

    def outcome(number: int) -> TransactionState:
        return TransactionState.ROLLBACK if number % 2 else TransactionState.COMMIT

    def local(message: Message, transaction_id: str) -> TransactionState:
        number = payload.number(message.body)
        return TransactionState.UNKNOWN if number % 3 == 0 else outcome(number)

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(payload.number(message.body))
        return outcome(asked[-1])

    with Producer(f"{topic}-python", nameserver=between.nameservers, checker=check) as producer:
        sent = [
            producer.send_transaction(Message(topic, payload.body(n), tags=f"t{n}"), local)
            for n in range(8)
        ]
        read = run_scenario(
            tmp_path, client, "interop-read", between.nameservers, topic=topic, messages=4
        )
    assert read[-1]["in_time"]
    found = {each["number"]: each for each in read[:-1]}
    assert sorted(found) == [0, 2, 4, 6]
    assert len(read) == 5
    assert sorted(set(asked)) == [0, 3, 6]
    for number, facts in found.items():
        assert facts["id"] == sent[number].message_id
        assert facts["tags"] == f"t{number}"


def test_python_is_asked_about_the_transactions_of_a_java_producer_that_was_killed(
    between: Server, client: str, topic: str, tmp_path: Path
) -> None:
    with Scenario(
        tmp_path, client, "transactions-victim", between.nameservers, topic=topic, messages=10
    ) as victim:
        assert victim.wait_for("halves")["stored"] == 10
    asked: set[int] = set()

    def check(message: ReceivedMessage) -> TransactionState:
        number = payload.number(message.body)
        asked.add(number)
        return TransactionState.ROLLBACK if number % 2 else TransactionState.COMMIT

    # It sends nothing: that it has a checker is enough for brokers to know it.
    with Producer(f"{topic}-transactions", nameserver=between.nameservers, checker=check):
        with Reader(between, topic) as reader:
            found = [payload.number(each.body) for each in reader.wait_for(5, 120)]
            wait_until(lambda: len(asked) == 10, "all questions", 60)
    assert sorted(found) == [0, 2, 4, 6, 8]


VICTIM = """
import os, signal, sys
from onelog.client.message import Message
from onelog.client.producer.producer import Producer
from onelog.client.extras.trace_hook import TraceHook
from onelog.client.producer.transactions import TransactionState
from tests.e2e import payload
nameservers, topic, messages = sys.argv[1:]
left = int(messages)
def die(message, transaction_id):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return TransactionState.UNKNOWN
check = lambda message: TransactionState.UNKNOWN
with Producer(f"{topic}-transactions", nameserver=nameservers, checker=check) as producer:
    for number in range(int(messages)):
        producer.send_transaction(Message(topic, payload.body(number)), die)
"""


def test_java_is_asked_about_the_transactions_of_a_python_producer_that_was_killed(
    between: Server, client: str, topic: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", VICTIM, between.nameservers, topic, "10"],
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert ended.returncode == -9
    done = run_scenario(
        tmp_path, client, "transactions-heir", between.nameservers, 200, topic=topic, messages=10
    )[-1]
    assert done["asked"] == 10
    assert done["received"] == 5
    assert done["duplicates"] == 0
    assert done["rolled_back_but_received"] == 0


def test_python_answers_the_requests_of_java(
    between: Server, client: str, topic: str, tmp_path: Path
) -> None:
    failed: list[ReplyFailedError] = []
    with Producer(f"{topic}-python", nameserver=between.nameservers, timeout=10) as producer:
        producer.send(Message(topic, b"to make the topic"))

        def answer(request: ReceivedMessage) -> None:
            if request.tags == "ask":
                try:
                    producer.reply(
                        request, b"re: " + request.body, tags="told", properties={"colour": COLOUR}
                    )
                except ReplyFailedError as error:
                    failed.append(error)

        consumer = PushConsumer(f"{topic}-python", nameserver=between.nameservers, start="first")
        with consumer:
            consumer.subscribe(topic, listener=answer)
            consumer.start()
            done = run_scenario(
                tmp_path,
                client,
                "interop-ask",
                between.nameservers,
                topic=topic,
                threads=4,
                requests=20,
            )[-1]
    names = [f"t{thread}-{number}" for thread in range(4) for number in range(20)]
    assert done["replies"] == {name: f"re: {name}/told/{COLOUR}" for name in names}
    assert failed == []


def test_java_answers_the_requests_of_python(
    between: Server, client: str, topic: str, tmp_path: Path
) -> None:
    replies: dict[str, ReceivedMessage] = {}
    with Scenario(
        tmp_path, client, "interop-answer", between.nameservers, topic=topic
    ) as answering:
        answering.wait_for("waiting")
        with Producer(f"{topic}-python", nameserver=between.nameservers) as producer:

            def ask(prefix: str) -> None:
                for number in range(20):
                    text = f"{prefix}-{number}"
                    message = Message(topic, text.encode())
                    replies[text] = producer.request(message, timeout=60 if number == 0 else 20)

            threads = [
                threading.Thread(target=ask, args=(name,)) for name in ("a", "b", "long", "c")
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(replies) == 80
    for text, reply in replies.items():
        expected = f"re: {text * 1000}" if text.startswith("long") else f"re: {text}"
        assert reply.body == expected.encode()
        assert reply.properties == {"colour": "grün"}


def test_a_request_that_java_does_not_answer_times_out(between: Server, topic: str) -> None:
    with Producer(f"{topic}-python", nameserver=between.nameservers) as producer:
        producer.send(Message(topic, b"to make the topic"))
        with pytest.raises(RequestTimeoutError, match="within 1500 ms"):
            producer.request(Message(topic, b"anybody?"), timeout=1.5)


def test_the_traces_of_python_are_read_by_mqadmin(
    between: Server, topic: str, tmp_path: Path
) -> None:
    seen: list[ReceivedMessage] = []
    nameservers = between.nameservers
    with Producer("tracers", nameserver=nameservers, hooks=[TraceHook()]) as producer:
        receipt = producer.send(Message(topic, b"x", tags="t", keys=["k"]))
    with PushConsumer(
        "traced", nameserver=nameservers, start="first", hooks=[TraceHook()]
    ) as consumer:
        consumer.subscribe(topic, listener=seen.append)
        consumer.start()
        wait_until(lambda: bool(seen), "the message", 60)

    def is_told() -> bool:
        printed = mqadmin(tmp_path, nameservers, "queryMsgTraceById", "-i", receipt.message_id)
        return all(word in printed for word in ("Pub", "tracers", "Sub", "traced", "success"))

    wait_until(is_told, "the trace", 60)


def test_either_server_is_spoken_to_under_tls(between: Server, topic: str) -> None:
    with Producer(f"{topic}-plain", nameserver=between.nameservers) as producer:
        producer.send(Message(topic, b"plain"))
    with Producer(f"{topic}-tls", nameserver=between.nameservers, tls=True) as producer:
        producer.send(Message(topic, b"encrypted"))
    with Reader(between, topic) as reader:
        assert sorted(each.body for each in reader.wait_for(2)) == [b"encrypted", b"plain"]
