"""Connections of STOMP: versions, heart-beats, errors, receipts, and hostile bytes."""

import inspect
import random
import time

import pytest
import websockets.sync.client
from websockets.typing import Subprotocol

import onelog
from onelog import errors
from onelog.embedded_broker import EmbeddedBroker
from onelog.errors import OnelogError
from onelog.gateways.stomp.session import ERROR_TEXTS
from tests.gateways.stomp.live import Bare, connected
from tests.ports import free_port


@pytest.mark.parametrize(
    ("offered", "agreed"), [("1.0", "1.0"), ("1.0,1.1", "1.1"), ("1.1,1.2,2.0", "1.2")]
)
def test_the_highest_common_version(
    onelog_stomp: EmbeddedBroker, offered: str, agreed: str
) -> None:
    with Bare(onelog_stomp.stomp_address) as bare:
        answer = bare.connect(offered)
    assert (answer.command, answer.headers["version"]) == ("CONNECTED", agreed)
    assert answer.headers["server"].startswith("OneLog/")


def test_without_a_version_it_is_1_0(onelog_stomp: EmbeddedBroker) -> None:
    with Bare(onelog_stomp.stomp_address) as bare:
        bare.say(b"CONNECT\r\nlogin: me\r\n\r\n\0")
        assert bare.hear().headers["version"] == "1.0"


def test_no_common_version(onelog_stomp: EmbeddedBroker) -> None:
    with Bare(onelog_stomp.stomp_address) as bare:
        answer = bare.connect("2.0")
        assert (answer.command, answer.headers["version"]) == ("ERROR", "1.0,1.1,1.2")
        assert bare.is_closed()


def test_heart_beats_come_as_often_as_asked_for(onelog_stomp: EmbeddedBroker) -> None:
    with Bare(onelog_stomp.stomp_address) as bare:
        answer = bare.connect("1.2", "heart-beat:0,300\n")
        assert answer.headers["heart-beat"] == "300,0"
        bare.wait_for_heartbeats(3)


def test_who_sends_no_heart_beat_is_dropped(onelog_stomp: EmbeddedBroker) -> None:
    with Bare(onelog_stomp.stomp_address) as bare:
        bare.connect("1.2", "heart-beat:300,0\n")
        assert bare.is_closed()


def test_who_sends_heart_beats_stays(onelog_stomp: EmbeddedBroker) -> None:
    with Bare(onelog_stomp.stomp_address) as bare:
        bare.connect("1.2", "heart-beat:1000,0\n")
        for _ in range(12):
            bare.say(b"\n")
            time.sleep(0.25)
        bare.say(b"DISCONNECT\nreceipt:bye\n\n\0")
        assert bare.hear().headers["receipt-id"] == "bye"
        assert bare.is_closed()


def test_stomp_py_with_heart_beats(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address, heartbeats=(500, 500)) as client:
        client.subscribe("/queue/h")
        time.sleep(2)
        client.send("/queue/h", "x")
        assert client.get().body == "x"


@pytest.mark.parametrize(
    ("frame", "message", "reason"),
    [
        ("SEND\n\n\0", "bad request", "needs the header 'destination'"),
        ("SEND\ndestination:x\n\n\0", "bad request", "is no destination"),
        ("SEND\ndestination:/queue/a.>\n\n\0", "bad request", "many queues"),
        ("SEND\ndestination:/queue/a\ntransaction:t\n\n\0", "bad request", "BEGIN"),
        ("SEND\ndestination:/queue/a\npriority:x\n\n\0", "bad request", "priority"),
        ("SUBSCRIBE\ndestination:/queue/a\n\n\0", "bad request", "'id'"),
        ("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:x\n\n\0", "bad request", "client-individual"),
        ("SUBSCRIBE\nid:1\ndestination:/queue/a\nselector:a =\n\n\0", "bad selector", "expected"),
        ("SUBSCRIBE\nid:1\ndestination:/topic/a\nbrowser:true\n\n\0", "bad request", "browser"),
        (
            "SUBSCRIBE\nid:1\ndestination:/topic/a\nactivemq.subscriptionName:x\n\n\0",
            "bad request",
            "client-id",
        ),
        ("UNSUBSCRIBE\nid:1\n\n\0", "bad request", "no subscription"),
        ("ACK\nid:1\n\n\0", "bad request", "no message with that id"),
        ("ACK\n\n\0", "bad request", "'id'"),
        ("NACK\nid:" + "9" * 50 + "-" + "9" * 500 + "\n\n\0", "bad request", "no message"),
        ("BEGIN\n\n\0", "bad request", "'transaction'"),
        ("COMMIT\ntransaction:t\n\n\0", "no such transaction", "BEGIN"),
        ("CONNECT\n\n\0", "bad request", "is no command"),
        ("WHAT\n\n\0", "bad request", "is no command"),
        ("SEND\ndestination\n\n\0", "malformed frame", "name:value"),
        ("SEND\ndestination:/queue/a\ncontent-length:5000000000\n\n\0", "malformed frame", "limit"),
        ("SEND\ndestination:/queue/a\\t\n\n\0", "malformed frame", "escape"),
    ],
)
def test_errors_say_what_is_wrong(
    onelog_stomp: EmbeddedBroker, frame: str, message: str, reason: str
) -> None:
    with Bare(onelog_stomp.stomp_address) as bare:
        bare.connect()
        bare.say(frame.encode())
        answer = bare.hear()
        assert (answer.command, answer.headers["message"]) == ("ERROR", message)
        assert reason in answer.body.decode()
        assert bare.is_closed()


def test_what_comes_before_connect(onelog_stomp: EmbeddedBroker) -> None:
    with Bare(onelog_stomp.stomp_address) as bare:
        bare.say(b"SEND\ndestination:/queue/a\n\n\0")
        assert b"connect first" in bare.hear().body
        assert bare.is_closed()


def test_the_receipt_of_a_goodbye_comes_last(onelog_stomp: EmbeddedBroker) -> None:
    with Bare(onelog_stomp.stomp_address) as bare:
        bare.connect()
        send = b"".join(
            b"SEND\ndestination:/queue/a\nreceipt:%d\n\n\0" % number for number in range(500)
        )
        bare.say(send + b"DISCONNECT\nreceipt:bye\n\n\0")
        told = [bare.hear().headers["receipt-id"] for _ in range(501)]
        assert sorted(told[:-1], key=int) == [str(number) for number in range(500)]
        assert told[-1] == "bye"
        assert bare.is_closed()


def test_garbage_ends_its_own_connection_only(onelog_stomp: EmbeddedBroker) -> None:
    chance = random.Random(7)
    commands = [b"SEND", b"SUBSCRIBE", b"ACK", b"NACK", b"BEGIN", b"COMMIT", b"DISCONNECT", b"X"]
    names = [
        b"destination",
        b"id",
        b"ack",
        b"transaction",
        b"receipt",
        b"content-length",
        b"selector",
        b"browser",
        b"message-id",
        b"reply-to",
        b"expires",
    ]
    values = [
        b"/queue/a",
        b"/topic/a.>",
        b"/temp-queue/x",
        b"client",
        b"1",
        b"-1",
        b"\xff",
        b"a\\",
        b"x" * 5000,
        b"",
        b"/queue/a,b,/topic/c",
        b"/exchange/amq.topic/#",
    ]
    with connected(onelog_stomp.stomp_address) as witness:
        witness.subscribe("/queue/witness")
        for _ in range(60):
            with Bare(onelog_stomp.stomp_address) as bare:
                bare.connect()
                for _ in range(chance.randrange(1, 6)):
                    count = chance.randrange(5)
                    lines = [chance.choice(commands)]
                    lines += [
                        chance.choice(names) + b":" + chance.choice(values) for _ in range(count)
                    ]
                    raw = (
                        b"\n".join(lines) + b"\n\n" + chance.randbytes(chance.randrange(9)) + b"\0"
                    )
                    if chance.random() < 0.2:
                        at = chance.randrange(len(raw))
                        raw = raw[:at] + chance.randbytes(3) + raw[at:]
                    try:
                        bare.say(raw)
                    except OSError:
                        break
        witness.send("/queue/witness", "alive")
        assert witness.get().body == "alive"


def test_who_does_not_read_does_not_fill_the_memory(onelog_stomp: EmbeddedBroker) -> None:
    address = onelog_stomp.stomp_address
    body = "x" * 100_000
    with Bare(address) as slow, connected(address) as client:
        slow.connect()
        slow.say(b"SUBSCRIBE\nid:1\ndestination:/queue/slow\nreceipt:r\n\n\0")
        slow.hear()
        for _ in range(200):
            client.send("/queue/slow", body)
        client.subscribe("/queue/other")
        client.send("/queue/other", "alive")
        assert client.get().body == "alive"
        for _ in range(200):
            assert len(slow.hear().body) == len(body)


def test_every_error_has_a_name() -> None:
    kinds = [
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, OnelogError)
    ]
    assert all(any(parent in ERROR_TEXTS for parent in kind.__mro__) for kind in kinds)


def test_stomp_over_websocket() -> None:
    port = free_port()
    with onelog.embedded(stomp=True, http__port=port) as mq, connected(mq.stomp_address) as client:
        client.subscribe("/queue/ws")
        with websockets.sync.client.connect(
            f"ws://127.0.0.1:{port}/stomp", subprotocols=[Subprotocol("v12.stomp")]
        ) as socket:
            assert socket.subprotocol == "v12.stomp"
            socket.send("CONNECT\naccept-version:1.2\nhost:/\n\n\0")
            assert str(socket.recv(30)).startswith("CONNECTED\n")
            socket.send("SEND\ndestination:/queue/ws\n\nhéllo\0")
            assert client.get().body == "héllo"
            socket.send("SUBSCRIBE\nid:1\ndestination:/queue/back\n\n\0")
            client.done(client.connection.send, "/queue/back", b"\xff\xfe")
            heard = socket.recv(30)
            assert isinstance(heard, bytes)
            assert heard.endswith(b"\n\n\xff\xfe\0")


def test_who_there_are_users_for_logs_in(onelog_stomp: EmbeddedBroker) -> None:
    with onelog_stomp.admin() as admin:
        admin.users.create("ann", "secret", is_admin=True)
    for passcode, command in (("wrong", "ERROR"), ("secret", "CONNECTED")):
        with Bare(onelog_stomp.stomp_address) as bare:
            # What comes before the answer is handled after it.
            bare.say(
                f"CONNECT\naccept-version:1.2\nhost:/\nlogin:ann\npasscode:{passcode}\n\n\0"
                "SEND\ndestination:/queue/a\nreceipt:1\n\n\0".encode()
            )
            assert bare.hear().command == command
            if command == "CONNECTED":
                assert bare.hear().headers["receipt-id"] == "1"
            else:
                assert bare.is_closed()
