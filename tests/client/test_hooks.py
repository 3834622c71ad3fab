"""Hooks are called around sends and listeners, and can do no harm."""

from collections.abc import Sequence

import pytest

from onelog.client.connection.instance import Instance
from onelog.client.hooks import (
    ConsumeContext,
    SendContext,
    TransactionContext,
    after_consume,
    after_send,
    before_consume,
    before_send,
    close_hooks,
    start_hooks,
    transaction_ended,
)
from onelog.client.message import Message, Queue, SendStatus
from onelog.client.producer.producer import AsyncProducer
from onelog.errors import ConfigError, OnelogError
from onelog.message import property_value
from onelog.wire.remoting.trace import MessageKind, Outcome
from tests.client.live_cluster import LiveCluster
from tests.client.watching import TOO_LARGE, stored


class Diary:
    """Writes down when it is called, and with what."""

    def __init__(self, name: str, pages: list[str]) -> None:
        self.name = name
        self.pages = pages
        self.contexts: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        self.pages.append(f"{self.name} before")
        assert (context.receipt, context.error) == (None, None)
        context.properties[f"by-{self.name}"] = "yes"
        context.notes[self] = f"note of {self.name}"

    def after_send(self, context: SendContext) -> None:
        self.pages.append(f"{self.name} after")
        assert context.notes[self] == f"note of {self.name}"
        self.contexts.append(context)

    def before_consume(self, context: ConsumeContext) -> None:
        self.pages.append(f"{self.name} before")

    def after_consume(self, context: ConsumeContext) -> None:
        self.pages.append(f"{self.name} after")

    def transaction_ended(self, context: TransactionContext) -> None:
        self.pages.append(f"{self.name} {context.state}")

    async def start(self, instance: Instance) -> None:
        self.pages.append(f"{self.name} starts with {instance.client_id}")

    async def close(self) -> None:
        self.pages.append(f"{self.name} closes")


class Clumsy:
    """Fails at everything."""

    def before_send(self, context: SendContext) -> None:
        raise LookupError("before")

    def after_send(self, context: SendContext) -> None:
        raise LookupError("after")

    def before_consume(self, context: ConsumeContext) -> None:
        raise LookupError("before")

    def after_consume(self, context: ConsumeContext) -> None:
        raise LookupError("after")

    async def start(self, instance: Instance) -> None:
        pass

    async def close(self) -> None:
        raise LookupError("close")


def two(pages: list[str]) -> Sequence[Diary]:
    return (Diary("a", pages), Diary("b", pages))


def test_hooks_are_called_in_order_and_then_backwards() -> None:
    pages: list[str] = []
    hooks = two(pages)
    sent = SendContext("shop", [Message("orders", b"x")])
    before_send(hooks, sent)
    after_send(hooks, sent)
    assert pages == ["a before", "b before", "b after", "a after"]
    consumed = ConsumeContext("billing", Queue("orders", "broker-a", 0), [])
    del pages[:]
    before_consume(hooks, consumed)
    after_consume(hooks, consumed)
    assert pages == ["a before", "b before", "b after", "a after"]


def test_a_hook_that_raises_is_logged_and_keeps_nobody_else_from_being_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pages: list[str] = []
    hooks = (Clumsy(), Diary("a", pages))
    sent = SendContext("shop", [Message("orders", b"x")])
    before_send(hooks, sent)
    after_send(hooks, sent)
    consumed = ConsumeContext("billing", Queue("orders", "broker-a", 0), [])
    before_consume(hooks, consumed)
    after_consume(hooks, consumed)
    assert pages == ["a before", "a after", "a before", "a after"]
    assert len(caplog.records) == 4


def test_only_hooks_that_want_to_know_hear_of_transactions() -> None:
    pages: list[str] = []
    context = TransactionContext("g", "t", "", "", "id", "id", "COMMIT_MESSAGE", "", False)
    transaction_ended((Clumsy(), *two(pages)), context)
    assert pages == ["a COMMIT_MESSAGE", "b COMMIT_MESSAGE"]


async def test_hooks_live_as_long_as_their_client(caplog: pytest.LogCaptureFixture) -> None:
    pages: list[str] = []
    hooks = (Clumsy(), *two(pages))
    instance = Instance({"client_id": "me"})
    await start_hooks(hooks, instance)
    await close_hooks(hooks)
    assert pages == ["a starts with me", "b starts with me", "a closes", "b closes"]
    assert "LookupError" in caplog.text


def test_a_consumption_is_a_success_unless_it_is_said_otherwise() -> None:
    context = ConsumeContext("billing", Queue("orders", "broker-a", 0), [])
    assert context.is_success
    context.outcome = Outcome.EXCEPTION
    assert not context.is_success


async def test_a_producer_calls_its_hooks_around_a_send(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    pages: list[str] = []
    hook = Diary("a", pages)
    async with AsyncProducer(
        "shop", nameserver=cluster.addresses, client_id="me", hooks=[Clumsy(), hook]
    ) as producer:
        message = Message("orders", b"x", properties={"own": "1"})
        receipt = await producer.send(message)
    assert pages == ["a starts with me", "a before", "a after", "a closes"]
    (context,) = hook.contexts
    assert (context.group, list(context.messages)) == ("shop", [message])
    assert (context.receipt, context.message_id) == (receipt, receipt.message_id)
    assert context.address == f"127.0.0.1:{cluster.brokers[0].config.broker.port}"
    assert (context.kind, context.error) == (MessageKind.NORMAL, None)
    (found,) = await stored(cluster, "orders", 1)
    assert property_value(found.properties, "by-a") == "yes"
    assert property_value(found.properties, "own") == "1"


async def test_a_producer_tells_its_hooks_of_batches_and_delays(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    hook = Diary("a", [])
    async with AsyncProducer("shop", nameserver=cluster.addresses, hooks=[hook]) as producer:
        batch = [Message("orders", b"1"), Message("orders", b"2")]
        receipt = await producer.send_batch(batch)
        await producer.send(Message("orders", b"later", delay_level=1))
        await producer.send_oneway(Message("orders", b"one-way"))
    batched, delayed, oneway = hook.contexts
    assert list(batched.messages) == batch
    assert (batched.message_id, batched.receipt) == (receipt.message_id, receipt)
    assert len(batched.message_id.split(",")) == 2
    assert delayed.kind is MessageKind.DELAY
    assert (oneway.receipt, oneway.error) == (None, None)
    assert oneway.message_id
    assert receipt.status is SendStatus.OK
    for found in (await stored(cluster, "orders", 1))[:2]:
        assert property_value(found.properties, "by-a") == "yes"


async def test_a_producer_tells_its_hooks_what_failed(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    hook = Diary("a", [])
    async with AsyncProducer("shop", nameserver=cluster.addresses, hooks=[hook]) as producer:
        with pytest.raises(OnelogError) as failure:
            await producer.send(Message("orders", TOO_LARGE))
    (context,) = hook.contexts
    assert context.receipt is None
    assert context.error is failure.value


async def test_a_hook_that_cannot_start_keeps_its_producer_from_starting() -> None:
    class Unwilling(Diary):
        async def start(self, instance: Instance) -> None:
            raise ConfigError("not this way")

    producer = AsyncProducer("shop", hooks=[Unwilling("a", [])])
    with pytest.raises(ConfigError, match="not this way"):
        await producer.start()
    await producer.close()
