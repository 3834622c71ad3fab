"""Connections to name servers and brokers: who is asked next, and how failures are told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from onelog.client.connection import nodes as nodes_module
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import REFUSALS, Nodes, SharedWork, at_once
from onelog.clock import ManualClock
from onelog.errors import (
    ClientClosedError,
    ConsumersOfflineError,
    NameserversUnreachableError,
    OnelogError,
    PartlyDoneError,
    PeerClosedError,
    PeerTimeoutError,
    RequestRefusedError,
    TopicNotFoundError,
    WireError,
)
from onelog.message import Buffer
from onelog.net.connection import Connection
from onelog.net.listener import Listener
from onelog.net.remoting import RemotingSession
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.routes import TopicList
from tests.waiting import eventually

LIST = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
Answer = Callable[[RemotingSession, Command], None]


class Node(RemotingSession):
    """A node that answers as it is told."""

    def __init__(self, connection: Connection, answer: Answer, seen: list["Node"]) -> None:
        super().__init__(connection)
        self._answer = answer
        self.requests: list[Command] = []
        seen.append(self)

    def handle(self, command: Command) -> None:
        self.requests.append(command)
        self._answer(self, command)


def silent(session: RemotingSession, command: Command) -> None:
    """A half-dead node takes requests and does not answer."""


def hang_up(session: RemotingSession, command: Command) -> None:
    session.connection.abort()


def saying(code: int = 0, remark: str = "", body: bytes = b"{}") -> Answer:
    return lambda session, command: session.reply(command, code, remark=remark, body=body)


Listen = Callable[[Answer], Awaitable[tuple[Address, list[Node]]]]


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    async with contextlib.AsyncExitStack() as stack:

        async def open_node(answer: Answer) -> tuple[Address, list[Node]]:
            seen: list[Node] = []
            listener = await Listener.open(
                "127.0.0.1", 0, lambda c: Node(c, answer, seen), clock=ManualClock()
            )
            stack.push_async_callback(listener.close)
            return Address(*listener.address), seen

        yield open_node


async def unused(listen: Listen) -> Address:
    listener = await Listener.open(
        "127.0.0.1", 0, lambda c: Node(c, silent, []), clock=ManualClock()
    )
    await listener.close()
    return Address(*listener.address)


async def test_a_half_dead_name_server_is_left_for_the_next_one_and_not_asked_first_again(
    listen: Listen,
) -> None:
    dead, seen = await listen(silent)
    alive, _ = await listen(saying(body=b'{"topicList":["a"]}'))
    async with Nodes([dead, alive], timeout_ms=500) as nodes:
        assert (await nodes.fetch_nameserver(LIST, TopicList)).topic_list == ["a"]
        for _ in range(3):
            await nodes.fetch_nameserver(LIST, TopicList)
    assert [len(node.requests) for node in seen] == [1]


@pytest.mark.parametrize("kind", ["refuses", "hangs up"])
async def test_a_name_server_that_is_gone_costs_no_waiting(listen: Listen, kind: str) -> None:
    gone = await unused(listen) if kind == "refuses" else (await listen(hang_up))[0]
    alive, _ = await listen(saying())
    async with Nodes([gone, alive], timeout_ms=30_000) as nodes:
        async with asyncio.timeout(20):
            await nodes.ask_nameserver(LIST)


async def test_an_error_of_a_name_server_is_an_answer(listen: Listen) -> None:
    first, _ = await listen(saying(ResponseCode.TOPIC_NOT_EXIST, "no such topic"))
    second, seen = await listen(saying())
    async with Nodes([first, second]) as nodes:
        with pytest.raises(TopicNotFoundError, match=f"^{first} refused .*no such topic"):
            await nodes.ask_nameserver(LIST)
    assert seen == []


async def test_no_name_server_at_all_says_why_for_each(listen: Listen) -> None:
    gone = await unused(listen)
    dead, _ = await listen(silent)
    async with Nodes([gone, dead], timeout_ms=50) as nodes:
        with pytest.raises(NameserversUnreachableError) as caught:
            await nodes.ask_nameserver(LIST)
    assert f"no connection to {gone}" in str(caught.value)
    assert f"{dead} did not answer {LIST.name} within 50 ms" in str(caught.value)


async def test_every_name_server_is_told(listen: Listen) -> None:
    first, seen_first = await listen(saying())
    second, seen_second = await listen(saying())
    async with Nodes([first, second]) as nodes:
        await nodes.change_nameservers(RequestCode.PUT_KV_CONFIG, {"key": "k"})
    for seen in (seen_first, seen_second):
        assert [command.ext for node in seen for command in node.requests] == [{"key": "k"}]


async def test_a_change_that_some_made_names_both_sides(listen: Listen) -> None:
    good, _ = await listen(saying())
    bad, _ = await listen(saying(1, "disk full"))
    async with Nodes([good, bad]) as nodes:
        with pytest.raises(PartlyDoneError, match=f"done on {good}.*{bad} refused.*disk full"):
            await nodes.change_nameservers(RequestCode.PUT_KV_CONFIG, {})
    async with Nodes([bad]) as nodes:
        with pytest.raises(RequestRefusedError, match="disk full"):
            await nodes.change_nameservers(RequestCode.PUT_KV_CONFIG, {})
        await nodes.change_nameservers(RequestCode.PUT_KV_CONFIG, {}, accept=frozenset({1}))


@pytest.mark.parametrize("code", sorted({*ResponseCode, 4711} - {ResponseCode.SUCCESS}))
async def test_every_error_code_becomes_a_typed_error_that_names_the_node(
    listen: Listen, code: int
) -> None:
    address, _ = await listen(saying(int(code), "the reason\nSee https://example.org"))
    async with Nodes([address]) as nodes:
        with pytest.raises(REFUSALS.get(code, RequestRefusedError)) as caught:
            await nodes.ask(address, LIST)
    text = str(caught.value)
    assert text.startswith(f"{address} refused {LIST.name}: the reason (code {int(code)} ")
    assert "\n" not in text


async def test_an_error_without_a_reason(listen: Listen) -> None:
    address, _ = await listen(saying(206))
    async with Nodes([address]) as nodes:
        with pytest.raises(ConsumersOfflineError, match="no reason given"):
            await nodes.ask(address, LIST)


async def test_a_body_that_cannot_be_read_names_the_node(listen: Listen) -> None:
    address, _ = await listen(saying(body=b"{nonsense"))
    async with Nodes([address]) as nodes:
        with pytest.raises(WireError, match=f"^{address} answered what cannot be read"):
            await nodes.fetch(address, LIST, TopicList)


async def test_a_connection_is_kept_and_one_that_broke_is_opened_again(listen: Listen) -> None:
    address, seen = await listen(saying())
    async with Nodes([address]) as nodes:
        await at_once(lambda _: nodes.ask(address, LIST), range(50))
        assert len(seen) == 1
        seen[0].connection.abort()
        await nodes.ask(address, LIST)
        assert len(seen) == 2


async def test_a_node_that_hangs_up_on_a_kept_connection_is_tried_once_more(
    listen: Listen,
) -> None:
    def first_only(session: RemotingSession, command: Command) -> None:
        if command.opaque == 1:
            session.reply(command)
        else:
            session.connection.abort()

    address, seen = await listen(first_only)
    async with Nodes([address]) as nodes:
        await nodes.ask(address, LIST)
        await nodes.ask(address, LIST)
        assert len(seen) == 2


async def test_a_node_that_always_hangs_up_is_an_error(listen: Listen) -> None:
    address, _ = await listen(hang_up)
    async with Nodes([address]) as nodes:
        with pytest.raises(PeerClosedError, match=f"^{address} closed the connection instead"):
            await nodes.ask(address, LIST)


async def test_what_some_answered_counts_unless_all_failed(listen: Listen) -> None:
    good, _ = await listen(saying(body=b'{"topicList":["a"]}'))
    bad, _ = await listen(saying(1, "ill"))
    async with Nodes([good]) as nodes:

        async def ask(address: Address) -> list[str]:
            return (await nodes.fetch(address, LIST, TopicList)).topic_list

        gathered = await nodes.gather({"good": good, "bad": bad}, ask)
        assert gathered.answers == {"good": ["a"]}
        assert [failure.who for failure in gathered.failures] == ["bad"]
        assert "ill" in gathered.failures[0].reason
        with pytest.raises(RequestRefusedError, match="ill"):
            await nodes.gather({"bad": bad}, ask)
        assert (await nodes.gather({}, ask)).answers == {}


async def test_many_are_asked_at_once_but_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "CONCURRENT_MAX", 3)
    running: list[int] = []
    most = 0

    async def ask(number: int) -> int:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(number)
        return number * number

    assert await at_once(ask, range(10)) == [n * n for n in range(10)]
    assert most == 3


async def test_the_first_error_ends_the_asking() -> None:
    finished = []

    async def ask(number: int) -> None:
        if number == 1:
            raise PeerTimeoutError("too late")
        await asyncio.sleep(60)
        finished.append(number)

    with pytest.raises(OnelogError, match="too late"):
        await at_once(ask, range(100))
    assert finished == []


async def test_those_who_share_work_may_give_up_and_are_told_of_its_end() -> None:
    begun: list[float] = []

    async def work(seconds: float) -> None:
        begun.append(seconds)
        await asyncio.sleep(seconds)

    shared: SharedWork[float, None] = SharedWork()
    first, second = (asyncio.create_task(shared.get(3600.0, work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not second.done()
    await shared.close()
    assert begun == [3600.0]
    with pytest.raises(ClientClosedError, match="closed meanwhile"):
        await second


async def test_all_who_want_a_node_wait_for_one_connection(listen: Listen) -> None:
    address, seen = await listen(saying())
    async with Nodes([address]) as nodes:
        peers = await asyncio.gather(*(nodes.peer(address) for _ in range(20)))
        assert len(set(map(id, peers))) == 1
        assert nodes.open_peer(address) is peers[0]
        assert nodes.nameservers == (address,)
    assert len(seen) == 1
    assert nodes.open_peer(address) is None


async def test_requests_are_signed(listen: Listen) -> None:
    address, seen = await listen(saying())
    signs = []

    def sign(ext: Mapping[str, str] | None, body: Buffer) -> dict[str, str]:
        signs.append(bytes(body))
        return {**(ext or {}), "Signature": "s"}

    async with Nodes([address], sign=sign) as nodes:
        await nodes.ask(address, LIST, {"a": "b"}, b"one", timeout_ms=20_000)
        await nodes.ask_nameserver(LIST)
    commands = [command for node in seen for command in node.requests]
    assert [command.ext for command in commands] == [
        {"a": "b", "Signature": "s"},
        {"Signature": "s"},
    ]
    assert {command.language for command in commands} == {"PYTHON"}
    assert signs == [b"one", b""]


async def test_nothing_is_connected_any_more_after_the_end(listen: Listen) -> None:
    address, seen = await listen(saying())
    nodes = Nodes([address])
    await nodes.ask(address, LIST)
    await nodes.close()
    for ask in (
        lambda: nodes.ask(address, LIST),
        lambda: nodes.peer(address),
        lambda: nodes.ask_nameserver(LIST),
    ):
        with pytest.raises(ClientClosedError, match=f"is closed, .* {address}"):
            await ask()
    await nodes.close()
    assert len(seen) == 1


async def test_an_answer_that_is_waited_for_at_the_end_is_not_asked_for_again(
    listen: Listen,
) -> None:
    address, seen = await listen(silent)
    nodes = Nodes([address], timeout_ms=30_000)
    async with asyncio.timeout(20):
        first = asyncio.create_task(nodes.ask(address, LIST))
        await eventually(lambda: bool(seen and seen[0].requests), "a request")
        # This one asks on a connection that was open before, and worth a new one elsewhere.
        second = asyncio.create_task(nodes.ask(address, LIST))
        await eventually(lambda: len(seen[0].requests) == 2, "another request")
        await nodes.close()
        with pytest.raises(PeerClosedError, match=f"{address} closed the connection"):
            await first
        with pytest.raises(ClientClosedError, match=f"is closed, .* {address}"):
            await second
    assert len(seen) == 1


async def test_a_half_dead_name_server_is_waited_for_while_the_next_one_is_asked(
    listen: Listen,
) -> None:
    dead, _ = await listen(silent)
    gone = await unused(listen)
    alive, _ = await listen(saying())
    async with Nodes([dead, gone, alive], timeout_ms=60_000) as nodes:
        async with asyncio.timeout(20):
            assert (await nodes.ask_nameserver(LIST))[0] == alive
        assert nodes.nameservers[0] == alive
        assert not nodes.suspects


async def test_a_node_that_did_not_answer_is_suspect_until_it_does(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "PROBE_SECONDS", 0.01)
    is_dead = True

    def answer(session: RemotingSession, command: Command) -> None:
        if not is_dead:
            session.reply(command)

    nameserver, _ = await listen(saying())
    gone = await unused(listen)
    address, seen = await listen(answer)
    async with Nodes([nameserver], timeout_ms=50) as nodes:
        with pytest.raises(PeerTimeoutError):
            await nodes.ask(address, LIST)
        with pytest.raises(PeerClosedError):
            await nodes.ask(gone, LIST)
        assert set(nodes.suspects) == {address, gone}
        # It may wake up on a new connection only.
        await eventually(lambda: len(seen) > 1, "it is tried anew")
        is_dead = False
        await eventually(lambda: set(nodes.suspects) == {gone}, "it answers")
        await nodes.ask(address, LIST)
