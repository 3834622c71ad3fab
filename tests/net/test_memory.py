import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import TypeVar

import pytest

from onelog.clock import ManualClock, SystemClock
from onelog.errors import ListenError, PeerClosedError
from onelog.net.capacity import Capacity
from onelog.net.connection import Connection, Limits, Session
from onelog.net.listener import Listener
from onelog.net.memory import MemoryListener, dial, host_address, host_name
from onelog.net.peer import Peer
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from tests.net.recorder import Recorder
from tests.net.sessions import Answering, Echo
from tests.waiting import eventually

HEART_BEAT = RequestCode.HEART_BEAT
T = TypeVar("T")
_ports = itertools.count(20_000)

MakeSession = Callable[[Connection], Session]
Listen = Callable[..., Awaitable[MemoryListener]]


@pytest.fixture
async def listen(clock: ManualClock) -> AsyncIterator[Listen]:
    listeners: list[MemoryListener] = []

    async def opened(make_session: MakeSession, limits: Limits | None = None) -> MemoryListener:
        listeners.append(
            await MemoryListener.open(
                "embedded-900", next(_ports), make_session, clock=clock, limits=limits
            )
        )
        return listeners[-1]

    yield opened
    for listener in listeners:
        await listener.close()


async def test_a_peer_gets_its_answers(listen: Listen) -> None:
    listener = await listen(Answering)
    peer = await Peer.connect(*listener.address)
    answers = await asyncio.gather(
        *(peer.ask(HEART_BEAT, {"n": str(n)}, bytes(n * 1000)) for n in range(50))
    )
    assert [answer.ext["n"] for answer in answers] == [str(n) for n in range(50)]
    assert [len(answer.body) for answer in answers] == [n * 1000 for n in range(50)]
    assert peer.connection.remote == listener.address
    assert not peer.connection.secure
    (connection,) = listener.connections
    assert connection.remote[0] == "127.0.0.1"
    await peer.close()
    assert not peer.is_open
    await eventually(lambda: not listener.connections)


async def test_a_reader_that_is_slow_gets_everything_and_one_that_never_reads_is_cut_off(
    listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(write_pause_bytes=64 << 10, write_bytes_max=8 << 20)
    listener = await listen(Echo, limits=limits)
    slow = Recorder()
    assert dial(slow, *listener.address)
    slow.transport.pause_reading()
    sent = bytes(range(256)) * 4096
    slow.transport.write(sent)
    await eventually(lambda: any(each.congested for each in listener.connections))
    slow.transport.resume_reading()
    await eventually(lambda: slow.size == len(sent))
    assert slow.received == sent
    slow.transport.pause_reading()
    slow.transport.write(bytes(9 << 20))  # The answer is large, and it may be.
    await eventually(lambda: any(each.congested for each in listener.connections))
    for each in list(listener.connections):
        each.write(bytes(9 << 20))  # But then there is more.
    await eventually(lambda: not listener.connections)
    assert "does not read: cut off" in caplog.text
    await eventually(lambda: "lost" in slow.events)


async def test_an_idle_connection_is_closed(listen: Listen, clock: ManualClock) -> None:
    listener = await listen(Answering, limits=Limits(idle_ms=1000))
    peer = await Peer.connect(*listener.address)
    await peer.ask(HEART_BEAT)
    for _ in range(3):
        assert peer.is_open
        listener.sweep()
        clock.advance(1000)
    await eventually(lambda: not peer.is_open)


async def test_more_connections_than_allowed_are_ended(
    listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    listener = await listen(Answering, limits=Limits(capacity=Capacity(connections_max=1)))
    first = await Peer.connect(*listener.address)
    await first.ask(HEART_BEAT)
    second = await Peer.connect(*listener.address)
    with pytest.raises(PeerClosedError):
        await second.ask(HEART_BEAT)
    listener.sweep()
    assert caplog.text.count("a connection refused: 1 are open already") == 1
    await first.ask(HEART_BEAT)
    await first.close()


async def test_a_name_is_listened_on_once_and_is_free_afterwards(listen: Listen) -> None:
    listener = await listen(Answering)
    with pytest.raises(ListenError, match=r"embedded-900:.* another listener does"):
        await MemoryListener.open(*listener.address, Answering, clock=SystemClock())
    await listener.close()
    again = await MemoryListener.open(*listener.address, Answering, clock=SystemClock())
    await listener.close()
    peer = await Peer.connect(*again.address)
    await peer.ask(HEART_BEAT)
    await again.close()
    await eventually(lambda: not peer.is_open)


async def test_a_name_of_this_process_is_refused_at_once_when_nobody_listens() -> None:
    for host in (host_name(77), host_address(77), host_address(70_000)):
        with pytest.raises(PeerClosedError, match=f"no broker .* listens on {host}:9876"):
            await Peer.connect(host, 9876)


async def test_a_connection_that_the_listener_never_saw_is_ended(listen: Listen) -> None:
    listener = await listen(Answering)
    peer = await Peer.connect(*listener.address)
    await listener.close()
    with pytest.raises(PeerClosedError):
        await peer.ask(HEART_BEAT)


async def test_a_network_address_of_this_process_is_reached_in_memory(listen: Listen) -> None:
    tcp = await Listener.open("127.0.0.1", 0, Answering, clock=SystemClock())
    memory = await MemoryListener.open(*tcp.address, Answering, clock=SystemClock())
    peer = await Peer.connect(*tcp.address)
    await peer.ask(HEART_BEAT)
    assert (len(tcp.connections), len(memory.connections)) == (0, 1)
    await memory.close()
    peer = await Peer.connect(*tcp.address)
    await peer.ask(HEART_BEAT)
    assert len(tcp.connections) == 1
    await peer.close()
    await tcp.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_child_process_does_not_see_the_listeners_of_its_parent(listen: Listen) -> None:
    listener = await listen(Answering)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            dial(Recorder(), *listener.address)
            os.write(writes, b"connected")
        except ConnectionRefusedError:
            os.write(writes, b"refused")
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        assert pipe.read() == b"refused"
    await asyncio.to_thread(os.waitpid, child, 0)


# Two loops.


class Elsewhere:
    """A loop of its own in a thread of its own, and what listens there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def listen(self, make_session: MakeSession) -> MemoryListener:
        limits = Limits(write_pause_bytes=64 << 10)
        opening = MemoryListener.open(
            "embedded-901", next(_ports), make_session, clock=SystemClock(), limits=limits
        )
        return self.run(opening)

    def stop(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    other = Elsewhere()
    yield other
    other.stop()


async def test_the_two_sides_may_live_on_different_loops(elsewhere: Elsewhere) -> None:
    threads: set[int] = set()

    class Noting(Answering):
        def handle(self, command: Command) -> None:
            threads.add(threading.get_ident())
            super().handle(command)

    listener = elsewhere.listen(Noting)
    peer = await Peer.connect(*listener.address)
    for _ in range(20):
        answers = await asyncio.gather(
            *(peer.ask(HEART_BEAT, {"n": str(n)}, bytes(n)) for n in range(100))
        )
        assert [answer.ext["n"] for answer in answers] == [str(n) for n in range(100)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    await peer.close()
    await eventually(lambda: not listener.connections)
    elsewhere.run(listener.close())


async def test_a_slow_reader_on_another_loop_gets_everything_in_order(
    elsewhere: Elsewhere,
) -> None:
    listener = elsewhere.listen(Echo)
    client = Recorder()
    assert dial(client, *listener.address)
    client.transport.set_write_buffer_limits(high=50_000)
    sent = bytearray()
    for number in range(600):
        piece = bytes([number % 256]) * (number * 37 % 20_000)
        sent += piece
        client.transport.write(piece)
        if number % 3 == 0:
            client.transport.pause_reading()
        elif number % 7 == 0:
            client.transport.resume_reading()
            await asyncio.sleep(0)
    client.transport.resume_reading()
    await eventually(lambda: client.size == len(sent))
    assert client.received == sent
    await eventually(lambda: client.events.count("pause") == client.events.count("resume"))
    elsewhere.run(listener.close())
    await eventually(lambda: client.events[-2:] == ["eof", "lost"])


async def test_a_loop_that_was_closed_early_is_a_lost_connection(elsewhere: Elsewhere) -> None:
    listener = elsewhere.listen(Answering)
    peer = await Peer.connect(*listener.address)
    await peer.ask(HEART_BEAT)

    async def forget() -> None:
        for task in listener._tasks:
            task.cancel()
        await asyncio.gather(*listener._tasks, return_exceptions=True)

    elsewhere.run(forget())
    elsewhere.stop()
    with pytest.raises(PeerClosedError):
        await peer.ask(HEART_BEAT)
    with pytest.raises(PeerClosedError, match="no broker of this process listens"):
        await Peer.connect(*listener.address)
