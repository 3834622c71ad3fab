import asyncio
from collections.abc import Callable

import pytest

from onelog.errors import OnelogError, PeerClosedError, PeerTimeoutError
from onelog.net import remoting
from onelog.net.connection import Connection, Limits
from onelog.net.remoting import RemotingSession
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import FLAG_RESPONSE, Command
from onelog.wire.remoting.frame import encode_request, encode_response
from tests.net.conftest import Listen
from tests.net.sessions import Answering, Client
from tests.waiting import eventually
from tests.wire.remoting.commands import encode_command

NOTIFY = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
ASK = RequestCode.GET_CONSUMER_RUNNING_INFO


def frame(command: Command) -> bytes:
    return b"".join(encode_command(command))


async def connect(listen: Listen, kind: type[RemotingSession]) -> tuple[Client, RemotingSession]:
    sessions: list[RemotingSession] = []

    def make(connection: Connection) -> RemotingSession:
        sessions.append(kind(connection))
        return sessions[0]

    client = await Client.connect(await listen(make))
    await eventually(lambda: sessions)
    return client, sessions[0]


async def test_requests_are_answered_in_order_with_their_numbers_and_in_their_form(
    listen: Listen,
) -> None:
    client, _ = await connect(listen, Answering)
    requests = [
        Command(310, opaque=n, serialize=n % 2, ext={"n": str(n)}, body=b"x" * n)
        for n in range(200)
    ]
    await client.send(b"".join(map(frame, requests)))
    for request in requests:
        answer = await client.receive_command()
        assert (answer.code, answer.opaque, answer.ext) == (0, request.opaque, request.ext)
        assert (answer.body, answer.serialize) == (request.body, request.serialize)
        assert answer.is_response
    client.close()


async def test_frames_may_arrive_in_any_pieces(listen: Listen) -> None:
    client, _ = await connect(listen, Answering)
    stream = b"".join(frame(Command(310, opaque=n, body=b"x" * n)) for n in range(5))
    for at in range(0, len(stream), 7):
        await client.send(stream[at : at + 7])
        await asyncio.sleep(0)
    assert [(await client.receive_command()).opaque for _ in range(5)] == list(range(5))
    client.close()


async def test_a_oneway_request_is_handled_but_not_answered(listen: Listen) -> None:
    client, session = await connect(listen, Answering)
    await client.send(b"".join(encode_request(15, 1, oneway=True)) + frame(Command(14, opaque=2)))
    assert (await client.receive_command()).opaque == 2
    assert isinstance(session, Answering)
    assert [command.code for command in session.seen] == [15, 14]
    client.close()


async def test_a_request_without_a_handler_is_refused_in_rocketmqs_words(listen: Listen) -> None:
    class Refusing(RemotingSession):
        def handle(self, command: Command) -> None:
            self.refuse_unknown(command)

    client, _ = await connect(listen, Refusing)
    await client.send(frame(Command(9999, opaque=3)))
    answer = await client.receive_command()
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 9999 not supported"
    client.close()


async def test_a_bug_is_answered_and_the_connection_lives_on(
    listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    class Buggy(Answering):
        def handle(self, command: Command) -> None:
            if command.code == 666:
                raise ZeroDivisionError
            super().handle(command)

    client, _ = await connect(listen, Buggy)
    await client.send(frame(Command(666, opaque=1)) + frame(Command(1, opaque=2)))
    answer = await client.receive_command()
    assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_ERROR, 1)
    assert answer.remark == "ZeroDivisionError"
    assert (await client.receive_command()).opaque == 2
    assert "request 666 of" in caplog.text
    client.close()


async def test_the_server_asks_its_client_and_gets_the_answer(listen: Listen) -> None:
    client, session = await connect(listen, Answering)
    answers: list[Command | OnelogError] = []
    session.request(ASK, {"k": "v"}, b"body", 5000, answers.append)
    asked = await client.receive_command()
    assert (asked.code, asked.ext, asked.body) == (ASK, {"k": "v"}, b"body")
    assert not asked.is_response
    # The client's own request with the same number is not taken for the answer.
    await client.send(frame(Command(1, opaque=asked.opaque)))
    await client.send(b"".join(encode_response(0, asked.opaque, body=b"answer")))
    await eventually(lambda: answers)
    assert isinstance(answers[0], Command)
    assert answers[0].body == b"answer"
    client.close()


async def test_a_client_that_does_not_answer_is_not_waited_for_for_ever(listen: Listen) -> None:
    client, session = await connect(listen, Answering)
    answers: list[Command | OnelogError] = []
    session.request(ASK, None, b"", 20, answers.append)
    asked = await client.receive_command()
    await eventually(lambda: answers)
    assert isinstance(answers[0], PeerTimeoutError)
    assert "did not answer request 307 within 20 ms" in str(answers[0])
    await client.send(b"".join(encode_response(0, asked.opaque)))
    await client.send(frame(Command(1, opaque=9)))
    assert (await client.receive_command()).opaque == 9
    assert len(answers) == 1
    client.close()


async def test_each_request_has_its_own_deadline(listen: Listen) -> None:
    client, session = await connect(listen, Answering)
    answers: list[tuple[str, Command | OnelogError]] = []

    def note(name: str) -> Callable[[Command | OnelogError], None]:
        return lambda answer: answers.append((name, answer))

    session.request(ASK, None, b"", 60_000, note("patient"))
    session.request(ASK, None, b"", 20, note("hasty"))
    session.request(ASK, None, b"", 40, note("less hasty"))
    patient = await client.receive_command()
    await eventually(lambda: len(answers) == 2)
    assert [name for name, _ in answers] == ["hasty", "less hasty"]
    assert "within 40 ms" in str(answers[1][1])
    await client.send(b"".join(encode_response(0, patient.opaque)))
    await eventually(lambda: len(answers) == 3)
    assert isinstance(answers[2][1], Command)
    client.close()


async def test_requests_say_what_we_are_written_in(listen: Listen) -> None:
    client, session = await connect(listen, Answering)
    session.request(ASK, None, b"", 5_000, lambda answer: None)
    session.language = "PYTHON"
    session.oneway(NOTIFY)
    assert (await client.receive_command()).language == "JAVA"
    assert (await client.receive_command()).language == "PYTHON"
    client.close()


async def test_a_client_that_leaves_answers_nothing_any_more(listen: Listen) -> None:
    client, session = await connect(listen, Answering)
    answers: list[Command | OnelogError] = []
    session.request(ASK, None, b"", 5000, answers.append)
    session.request(ASK, None, b"", 5000, answers.append)
    client.close()
    await eventually(lambda: len(answers) == 2)
    assert all(isinstance(answer, PeerClosedError) for answer in answers)
    session.request(ASK, None, b"", 5000, answers.append)
    assert len(answers) == 2
    await eventually(lambda: len(answers) == 3)
    assert isinstance(answers[2], PeerClosedError)


async def test_unanswered_requests_are_bounded(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remoting.RemotingSession, "unanswered_max", 2)
    client, session = await connect(listen, Answering)
    answers: list[Command | OnelogError] = []
    for _ in range(3):
        session.request(ASK, None, b"", 5000, answers.append)
    await eventually(lambda: answers)
    assert isinstance(answers[0], PeerTimeoutError)
    assert "owes 2 answers already" in str(answers[0])
    client.close()


async def test_a_notice_wants_no_answer(listen: Listen) -> None:
    client, session = await connect(listen, Answering)
    session.oneway(NOTIFY, {"consumerGroup": "g"})
    notice = await client.receive_command()
    assert (notice.code, notice.is_oneway, notice.ext) == (NOTIFY, True, {"consumerGroup": "g"})
    client.close()


async def test_answers_to_nobodys_questions_are_ignored(listen: Listen) -> None:
    client, _ = await connect(listen, Answering)
    await client.send(frame(Command(0, opaque=77, flag=FLAG_RESPONSE)))
    await client.send(frame(Command(1, opaque=78)))
    assert (await client.receive_command()).opaque == 78
    client.close()


async def test_requests_of_a_peer_that_does_not_read_wait_until_it_does(listen: Listen) -> None:
    class Generous(Answering):
        def handle(self, command: Command) -> None:
            self.seen.append(command)
            self.reply(command, body=bytes(1 << 20))

    sessions: list[Generous] = []

    def make(connection: Connection) -> Generous:
        sessions.append(Generous(connection))
        return sessions[0]

    limits = Limits(write_pause_bytes=256 << 10, write_bytes_max=64 << 20)
    client = await Client.connect(await listen(make, limits=limits))
    await client.send(b"".join(frame(Command(11, opaque=n)) for n in range(100)))
    await eventually(lambda: sessions and sessions[0].connection.congested)
    await asyncio.sleep(0.1)
    assert len(sessions[0].seen) < 50
    for opaque in range(100):
        assert (await client.receive_command()).opaque == opaque
    client.close()
