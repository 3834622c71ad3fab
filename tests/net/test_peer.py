import asyncio
import socket

import pytest

from onelog.config import TlsConfig
from onelog.errors import PeerClosedError, PeerTimeoutError
from onelog.net.connection import Connection, Limits
from onelog.net.peer import Peer
from onelog.net.remoting import RemotingSession
from onelog.net.tls import Tls, client_context
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.net.conftest import Listen
from tests.net.sessions import Answering
from tests.waiting import eventually

HEART_BEAT = RequestCode.HEART_BEAT


class Silent(RemotingSession):
    """Answers nothing."""

    def handle(self, command: Command) -> None:
        if command.code == RequestCode.UNREGISTER_CLIENT:
            self.connection.close()


async def test_questions_get_their_answers(listen: Listen) -> None:
    listener = await listen(Answering)
    peer = await Peer.connect(*listener.address)
    answers = await asyncio.gather(
        *(peer.ask(HEART_BEAT, {"n": str(n)}, bytes(n)) for n in range(50))
    )
    assert [answer.ext["n"] for answer in answers] == [str(n) for n in range(50)]
    assert [len(answer.body) for answer in answers] == list(range(50))
    await peer.close()
    assert not peer.is_open


async def test_questions_travel_through_tls(listen: Listen) -> None:
    listener = await listen(Answering, tls=Tls(TlsConfig(mode="enforcing")))
    peer = await Peer.connect(*listener.address, tls=client_context())
    assert (await peer.ask(HEART_BEAT, body=b"secret")).body == b"secret"
    assert peer.connection.secure
    await peer.close()


async def test_a_notice_arrives(listen: Listen) -> None:
    sessions: list[Answering] = []

    def make(connection: Connection) -> Answering:
        sessions.append(Answering(connection))
        return sessions[0]

    listener = await listen(make)
    peer = await Peer.connect(*listener.address)
    peer.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, {"queueId": "1"})
    await eventually(lambda: sessions and sessions[0].seen)
    assert sessions[0].seen[0].is_oneway
    await peer.close()


async def test_a_peer_that_does_not_answer_in_time_is_said(listen: Listen) -> None:
    listener = await listen(Silent)
    peer = await Peer.connect(*listener.address)
    with pytest.raises(PeerTimeoutError, match="did not answer request 34 within 20 ms"):
        await peer.ask(HEART_BEAT, timeout_ms=20)
    assert peer.is_open
    await peer.close()


async def test_a_peer_that_leaves_is_said_at_once(listen: Listen) -> None:
    listener = await listen(Silent)
    left: list[Peer] = []
    peer = await Peer.connect(*listener.address, on_closed=left.append)
    waiting = asyncio.create_task(peer.ask(HEART_BEAT))
    await asyncio.sleep(0)
    peer.oneway(RequestCode.UNREGISTER_CLIENT)
    with pytest.raises(PeerClosedError, match="closed before it answered"):
        await waiting
    assert left == [peer]
    with pytest.raises(PeerClosedError, match="is closed"):
        await peer.ask(HEART_BEAT)
    await peer.close()


class Deaf(RemotingSession):
    """Reads nothing, until it is told to, and talks all the time."""

    def handle(self, command: Command) -> None:
        self.reply(command)


async def test_a_peer_that_does_not_read_is_read_from_all_the_same(listen: Listen) -> None:
    sessions: list[Deaf] = []

    def make(connection: Connection) -> Deaf:
        sessions.append(Deaf(connection))
        return sessions[0]

    listener = await listen(make)
    asked: list[Command] = []
    peer = await Peer.connect(
        *listener.address, on_request=lambda _, command: asked.append(command)
    )
    await eventually(lambda: sessions)
    their = sessions[0].connection
    their._transport.pause_reading()
    for _ in range(200):
        peer.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, body=bytes(100_000))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(peer.caught_up())
    await asyncio.sleep(0)
    sessions[0].oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    await eventually(lambda: asked)
    assert not waiting.done()
    their._transport.resume_reading()
    async with asyncio.timeout(20):
        await waiting
        await peer.caught_up()
    await peer.close()


async def test_a_peer_that_never_reads_is_given_up(
    listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    sessions: list[Deaf] = []

    def make(connection: Connection) -> Deaf:
        sessions.append(Deaf(connection))
        return sessions[0]

    listener = await listen(make)
    limits = Limits(write_pause_bytes=100_000, write_bytes_max=1_000_000)
    peer = await Peer.connect(*listener.address, limits=limits)
    await eventually(lambda: sessions)
    sessions[0].connection._transport.pause_reading()
    waiting = asyncio.create_task(peer.ask(HEART_BEAT, timeout_ms=60_000))
    for _ in range(200):
        peer.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, body=bytes(100_000))
    async with asyncio.timeout(20):
        with pytest.raises(PeerClosedError):
            await waiting
        await peer.caught_up()
    assert not peer.is_open
    assert "does not read: given up" in caplog.text
    sessions[0].connection.abort()


async def test_many_requests_leave_before_the_tick_ends(listen: Listen) -> None:
    listener = await listen(Answering)
    peer = await Peer.connect(*listener.address)
    written: list[int] = []
    transport = peer.connection._transport

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(transport, name)

        def write(self, data: bytes) -> None:
            written.append(len(data))
            transport.write(data)

    peer.connection._transport = Watched()  # type: ignore[assignment]
    for _ in range(100):
        peer.connection.write(bytes(1_000))
    assert len(written) == 5
    peer.connection._transport = transport
    peer.connection.abort()
    await peer.close()


async def test_giving_up_a_question_does_no_harm(listen: Listen) -> None:
    listener = await listen(Answering)
    peer = await Peer.connect(*listener.address)
    waiting = asyncio.create_task(peer.ask(HEART_BEAT))
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await peer.ask(HEART_BEAT, body=b"x")).body == b"x"
    await peer.close()


async def test_nobody_there_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(PeerClosedError, match=f"no connection to 127.0.0.1:{port}"):
            await Peer.connect("127.0.0.1", port)


async def test_a_handshake_without_an_end_is_not_waited_for_for_ever(listen: Listen) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(PeerTimeoutError, match="in 50 ms"):
            await Peer.connect(*deaf.getsockname(), tls=client_context(), timeout_ms=50)


@pytest.mark.parametrize("is_handled", [True, False])
async def test_questions_of_the_other_side_are_handled_or_refused(
    listen: Listen, is_handled: bool
) -> None:
    answers: list[object] = []

    class Asking(RemotingSession):
        def __init__(self, connection: Connection) -> None:
            super().__init__(connection)
            self.request(HEART_BEAT, None, b"are you there?", 60_000, answers.append)

        def handle(self, command: Command) -> None:
            self.refuse_unknown(command)

    listener = await listen(Asking)
    peer = await Peer.connect(
        *listener.address,
        on_request=(lambda peer, command: peer.reply(command, body=b"yes")) if is_handled else None,
    )
    await eventually(lambda: answers)
    answer = answers[0]
    assert isinstance(answer, Command)
    if is_handled:
        assert answer.body == b"yes"
    else:
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    await peer.close()
