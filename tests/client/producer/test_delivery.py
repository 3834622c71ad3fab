"""Delivery: another broker, another try, and how long all of it may take."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from onelog.client.connection.instance import Instance
from onelog.client.message import Message, Queue, Receipt
from onelog.client.producer import delivery as delivery_module
from onelog.client.producer.delivery import Delivery
from onelog.client.producer.pending_sends import Parcel
from onelog.errors import (
    BrokerNotFoundError,
    ClientClosedError,
    MessageError,
    NameserversUnreachableError,
    NotPermittedError,
    SendFailedError,
    TopicNotFoundError,
)
from onelog.net.remoting import RemotingSession
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.routes import TopicRouteData
from tests.client.scripted import (
    SENDS,
    Answer,
    ScriptedNode,
    hang_up,
    knowing,
    refusing,
    route_data,
    scripted,
    silent,
    storing,
)
from tests.ports import free_port
from tests.waiting import eventually

TIMEOUT_MS = 2_000


def to_sends(answer: Answer) -> Answer:
    """So to sends, and kindly to everything else."""

    def either(session: RemotingSession, command: Command) -> None:
        if command.code in SENDS:
            answer(session, command)
        else:
            session.reply(command)

    return either


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port where connections are neither taken nor refused: its queue is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


class World:
    """A name server, brokers, and the sending side of a client."""

    def __init__(
        self, nameserver: ScriptedNode, brokers: list[ScriptedNode], delivery: Delivery
    ) -> None:
        self.nameserver = nameserver
        self.brokers = brokers
        self.delivery = delivery
        self.routes: dict[str, TopicRouteData] = {}

    async def deliver(self, topic: str = "orders", **changed: object) -> Receipt:
        return await self.delivery.deliver(self.parcel(topic, **changed))

    def parcel(self, topic: str = "orders", **changed: object) -> Parcel:
        plain = Parcel(topic, "ID", "UNIQ_KEY\x01ID\x02", b"hello", timeout_ms=TIMEOUT_MS)
        return plain._replace(**changed)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def world(
    *answers: Answer, retries: int = 2, avoid_faults: bool = False, timeout: float = 2
) -> AsyncIterator[World]:
    """Brokers named a, b, ... that answer so, with two queues of topic `orders` each."""
    async with contextlib.AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(scripted(to_sends(each))) for each in answers]
        routes: dict[str, TopicRouteData] = {}
        nameserver = await stack.enter_async_context(scripted(knowing(routes)))
        instance = Instance({"nameserver": str(nameserver.address), "timeout": timeout})
        instance.producer_groups.add("shop")
        delivery = Delivery(instance, "shop", retries=retries, queues=4, avoid_faults=avoid_faults)
        await instance.start()
        delivery.start()
        stack.push_async_callback(instance.close)
        made = World(nameserver, brokers, delivery)
        made.routes = routes
        addresses = {name: node.address for name, node in zip("abc", brokers, strict=False)}
        routes["orders"] = route_data(addresses)
        yield made


@pytest.fixture(params=[hang_up, silent, refusing(ResponseCode.SYSTEM_ERROR, "no luck")])
def broken(request: pytest.FixtureRequest) -> Answer:
    answer: Answer = request.param
    return answer


async def test_a_broker_that_fails_is_left_for_another_with_the_same_id(broken: Answer) -> None:
    async with world(broken, storing) as here:
        for _ in range(4):
            receipt = await here.deliver()
            assert receipt.queue.broker == "b"
            assert receipt.message_id == "ID"
        bad, good = here.brokers
        assert bad.sends()
        assert len(good.sends()) == 4
        assert {command.ext["i"] for command in bad.sends()} == {"UNIQ_KEY\x01ID\x02"}


async def test_every_try_is_in_the_error(broken: Answer) -> None:
    async with world(broken, broken) as here:
        with pytest.raises(Exception, match="in 3 tries") as caught:
            await here.deliver(timeout_ms=6_000)  # Half of it for the first.
        text = str(caught.value)
        assert all(str(broker.address) in text for broker in here.brokers)
        assert sum(len(broker.sends()) for broker in here.brokers) == 3
        assert caught.value.__cause__ is not None


async def test_a_half_dead_broker_does_not_use_up_the_time_of_the_others() -> None:
    async with world(silent, silent, storing) as here:
        async with asyncio.timeout(TIMEOUT_MS / 1000 * 5):
            for _ in range(3):
                assert (await here.deliver()).queue.broker == "c"


async def test_all_tries_together_end_in_time() -> None:
    async with world(silent, timeout=60) as here:
        began = here.delivery.loop.time()
        with pytest.raises(SendFailedError, match="did not answer within"):
            await here.deliver(timeout_ms=200)
        assert here.delivery.loop.time() - began < 30


async def test_without_retries_there_is_one_try() -> None:
    async with world(hang_up, hang_up, retries=0) as here:
        with pytest.raises(SendFailedError, match=r"in 1 tries: . .* closed the connection"):
            await here.deliver()
        assert sum(len(broker.sends()) for broker in here.brokers) == 1


async def test_what_no_broker_would_take_is_not_tried_again() -> None:
    refusal = refusing(ResponseCode.MESSAGE_ILLEGAL, "too large")
    async with world(refusal, refusal) as here:
        with pytest.raises(MessageError, match="too large"):
            await here.deliver()
        assert sum(len(broker.sends()) for broker in here.brokers) == 1


async def test_a_refusal_by_all_has_its_own_type() -> None:
    refusal = refusing(ResponseCode.NO_PERMISSION, "not you")
    async with world(refusal, refusal) as here:
        with pytest.raises(NotPermittedError, match=r"3 tries.*not you"):
            await here.deliver()


@pytest.mark.parametrize("fixed", ["queue", "order_key"])
async def test_a_message_for_one_queue_is_tried_there_only(fixed: str) -> None:
    failures = 2

    def at_last(session: RemotingSession, command: Command) -> None:
        nonlocal failures
        if command.code == RequestCode.SEND_MESSAGE_V2 and failures:
            failures -= 1
            hang_up(session, command)
        else:
            storing(session, command)

    async with world(at_last, at_last) as here:
        if fixed == "order_key":
            receipt = await here.deliver(order_key="c")  # 99 modulo 4 is 3: the last queue.
        else:
            receipt = await here.deliver(queue=Queue("orders", "b", 1))
        assert receipt.queue == Queue("orders", "b", 1)
        assert here.brokers[0].sends() == []
        assert len(here.brokers[1].sends()) == 3


async def test_a_queue_that_the_topic_does_not_have_is_refused() -> None:
    async with world(storing) as here:
        with pytest.raises(BrokerNotFoundError, match=r"queue_id=9.*'orders' has 2 on a"):
            await here.deliver(queue=Queue("orders", "a", 9))


async def test_brokers_with_faults_are_avoided_by_later_messages_too() -> None:
    async with world(hang_up, storing, avoid_faults=True) as here:
        for _ in range(20):
            await here.deliver()
        assert len(here.brokers[0].sends()) <= 1
    async with world(hang_up, storing, avoid_faults=False) as here:
        for _ in range(20):
            await here.deliver()
        assert len(here.brokers[0].sends()) > 1


async def test_a_broker_that_moved_is_found_while_trying() -> None:
    async with world(storing, storing) as here:
        first, second = here.brokers
        here.routes["orders"] = route_data({"a": first.address})
        await here.deliver()
        first.answer = to_sends(hang_up)
        here.routes["orders"] = route_data({"a": second.address})
        receipt = await here.deliver()
        assert receipt.queue.broker == "a"
        assert len(second.sends()) == 1


async def test_a_master_that_fell_silent_and_was_replaced_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its machine is gone: nothing closes the connection, and the time-out is far away."""
    monkeypatch.setattr(delivery_module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(delivery_module, "SILENT_SECONDS", 0.1)
    async with world(storing, storing) as here:
        first, second = here.brokers
        here.routes["orders"] = route_data({"a": first.address})
        await here.deliver()
        first.answer = to_sends(silent)
        waiting = asyncio.create_task(here.deliver(timeout_ms=600_000))
        await eventually(lambda: len(first.sends()) == 2, "the second send")
        here.routes["orders"] = route_data({"a": second.address})
        receipt = await asyncio.wait_for(waiting, 30)
        assert receipt.queue.broker == "a"
        assert len(second.sends()) == 1


async def test_a_broker_that_nobody_knows_is_said() -> None:
    async with world(storing) as here:
        here.routes["orders"] = route_data({"a": here.brokers[0].address}, order="gone:1")
        with pytest.raises(SendFailedError, match="the name servers know no broker 'gone' now"):
            await here.deliver()


async def test_a_topic_without_writable_queues_is_said_and_looked_up_again() -> None:
    async with world(storing) as here:
        address = here.brokers[0].address
        here.routes["orders"] = route_data({"a": address}, perm=4)
        with pytest.raises(BrokerNotFoundError, match="'orders' has no queue that can be written"):
            await here.deliver()
        here.routes["orders"] = route_data({"a": address})
        await here.deliver()


@pytest.mark.parametrize("order_key", [None, "k"])
async def test_sends_between_two_masters_take_the_patient_way(order_key: str | None) -> None:
    async with world(storing) as here:
        await here.deliver()
        here.routes["orders"] = route_data({"a": here.brokers[0].address}, perm=4)
        await here.delivery.instance.routes.refresh("orders")
        message = Message("orders", b"hello")
        assert not here.delivery.post(message, order_key, None, TIMEOUT_MS, lambda _: None)
        with pytest.raises(BrokerNotFoundError, match="has no queue that can be written to now"):
            await here.deliver(order_key=order_key)
        here.routes["orders"] = route_data({"a": here.brokers[0].address})
        await here.deliver(order_key=order_key)


async def test_a_missing_topic_is_said_and_a_default_topic_helps() -> None:
    async with world(storing) as here:
        with pytest.raises(TopicNotFoundError, match="topic 'new' does not exist"):
            await here.deliver("new")
        here.routes["TBW102"] = route_data({"a": here.brokers[0].address}, queues=8, perm=7)
        await here.deliver("new")
        (command,) = here.brokers[0].sends()
        assert (command.ext["b"], command.ext["c"], command.ext["d"]) == ("new", "TBW102", "4")


async def test_a_half_dead_name_server_does_not_stall_sends_whose_route_is_known() -> None:
    async with world(storing, hang_up, timeout=30) as here:
        await here.deliver()
        here.nameserver.answer = silent
        async with asyncio.timeout(10):
            for _ in range(10):
                await here.deliver()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await here.deliver("other")
            await here.deliver()


async def test_a_half_dead_name_server_costs_one_time_out_the_first_time() -> None:
    async with world(storing) as here, scripted(silent) as dead:
        both = f"{dead.address};{here.nameserver.address}"
        instance = Instance({"nameserver": both, "timeout": 1})
        delivery = Delivery(instance, "shop", retries=2, queues=4, avoid_faults=False)
        await instance.start()
        delivery.start()
        began = delivery.loop.time()
        await asyncio.gather(*(delivery.deliver(here.parcel()) for _ in range(20)))
        assert delivery.loop.time() - began < 10
        assert dead.codes() == [RequestCode.GET_ROUTEINFO_BY_TOPIC]
        await instance.close()


async def test_no_name_server_at_all_is_said_with_the_address() -> None:
    async with world(storing) as here:
        instance = Instance({"nameserver": "127.0.0.1:1", "timeout": 1})
        delivery = Delivery(instance, "shop", retries=2, queues=4, avoid_faults=False)
        await instance.start()
        delivery.start()
        with pytest.raises(NameserversUnreachableError, match=r"127\.0\.0\.1:1"):
            await delivery.deliver(here.parcel())
        await instance.close()


async def test_many_who_wait_for_a_dead_broker_do_not_wait_one_after_the_other() -> None:
    async with world(storing, storing) as here:
        with deaf_port() as port:
            address = here.brokers[0].address._replace(port=port)
            here.routes["orders"] = route_data({"a": address, "b": here.brokers[1].address})
            async with asyncio.timeout(TIMEOUT_MS / 1000 * 5):
                receipts = await asyncio.gather(*(here.deliver() for _ in range(50)))
            assert {receipt.queue.broker for receipt in receipts} == {"b"}
            with pytest.raises(SendFailedError, match=f"no connection to a .*:{port}"):
                await here.deliver(queue=Queue("orders", "a", 0), timeout_ms=100)


async def test_a_broker_that_cannot_be_reached_is_left_out_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_module, "UNREACHABLE_SECONDS", 600)
    async with world(storing, storing) as here:
        with deaf_port() as port:
            address = here.brokers[0].address._replace(port=port)
            here.routes["orders"] = route_data({"a": address, "b": here.brokers[1].address})
            await asyncio.gather(*(here.deliver() for _ in range(4)))
            began = here.delivery.loop.time()
            for _ in range(20):
                await here.deliver()
            # Half of them would wait for half of their time.
            assert here.delivery.loop.time() - began < 10 * TIMEOUT_MS / 1000 / 2


async def test_one_way_messages_get_no_answer_and_go_where_somebody_is() -> None:
    async with world(storing, storing) as here:
        nobody = here.brokers[0].address._replace(port=free_port())
        here.routes["orders"] = route_data({"a": nobody, "b": here.brokers[1].address})
        for _ in range(4):
            await here.deliver(is_oneway=True)
        await eventually(lambda: len(here.brokers[1].sends()) == 4, "four messages")
        assert all(command.is_oneway for command in here.brokers[1].sends())
        here.routes["orders"] = route_data({"a": nobody})
        await here.delivery.instance.routes.refresh("orders")
        with pytest.raises(SendFailedError, match=f"{nobody}.*{nobody}.*{nobody}"):
            await here.deliver(is_oneway=True)


async def test_nothing_is_sent_before_the_start_or_after_the_end() -> None:
    async with world(storing) as here:
        await here.deliver()
        await here.delivery.instance.close()
        with pytest.raises(ClientClosedError, match="is closed"):
            await here.deliver()


async def test_the_first_request_to_a_broker_is_the_heartbeat() -> None:
    async with world(storing) as here:
        await here.deliver()
        first, second = here.brokers[0].codes()
        assert (first, second) == (RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2)
