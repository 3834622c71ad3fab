"""Connections: the handshake, channels, signs of life, hostile clients, and the end."""

import contextlib
import socket
import time
from typing import Any

import pika
import pytest
from pika.exceptions import (
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

import onelog
from onelog.gateways.amqp.session import AmqpSession
from onelog.wire.amqp.frame import GREETING, HEARTBEAT, content_frames, method_frame
from onelog.wire.amqp.methods import ENCODERS
from tests.gateways.amqp.live import (
    Raw,
    bodies,
    channel,
    connected,
    got,
    name,
    ours_only,
    send,
    url,
)
from tests.waiting import wait_until

__all__ = ["channel", "url"]


def start_ok(raw: Raw, mechanism: str, response: bytes, *, polite: bool = True) -> None:
    client = {"capabilities": {"authentication_failure_close": polite}}
    raw.hear_of("connection.start")
    raw.say(0, "connection.start-ok", client, mechanism, response, "en_US")


def test_the_broker_introduces_itself(url: str) -> None:
    with Raw(url) as raw:
        major, minor, server, mechanisms, locales = raw.hear_of("connection.start")
        assert (major, minor, locales) == (0, 9, b"en_US")
        assert {b"PLAIN", b"AMQPLAIN"} <= set(mechanisms.split())
        assert server["product"] == "RabbitMQ"
        for name in ("publisher_confirms", "basic.nack", "consumer_cancel_notify"):
            assert server["capabilities"][name] is True


@pytest.mark.parametrize(
    "greeting", [b"AMQP\0\1\0\0", b"AMQP\2\1\0\0", b"GET / HT", b"\x16\3\1\0\1\0\0\0"]
)
def test_another_protocol_is_told_which_one_is_spoken(url: str, greeting: bytes) -> None:
    with Raw(url, greeting) as raw:
        found = b""
        while len(found) < 8 and (data := raw.socket.recv(100)):
            found += data
        assert found in (GREETING, b"")


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0guest"),
        ("AMQPLAIN", b"\5LOGINS\0\0\0\5guest\x08PASSWORDS\0\0\0\5guest"),
    ],
)
def test_both_mechanisms_let_in(url: str, mechanism: str, response: bytes) -> None:
    with Raw(url) as raw:
        start_ok(raw, mechanism, response)
        channel_max, frame_max, heartbeat = raw.hear_of("connection.tune")
        assert (channel_max, frame_max, heartbeat) == (2047, 131072, 60)


@pytest.mark.parametrize(
    ("mechanism", "response", "code", "text"),
    [
        ("PLAIN", b"\0guest\0wrong", 403, "ACCESS_REFUSED - Login was refused using"),
        ("PLAIN", b"\0nobody\0guest", 403, "ACCESS_REFUSED - Login was refused using"),
        pytest.param(
            "EXTERNAL",
            b"",
            503,
            "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'",
            marks=ours_only,
        ),
    ],
)
def test_whoever_is_not_known_is_not_let_in(
    url: str, mechanism: str, response: bytes, code: int, text: str
) -> None:
    with Raw(url) as raw:
        start_ok(raw, mechanism, response)
        found = raw.hear_of("connection.close")
        assert found[0] == code
        assert found[1].startswith(text)


def test_a_client_that_does_not_understand_is_dropped(url: str) -> None:
    with Raw(url) as raw:
        start_ok(raw, "PLAIN", b"\0guest\0wrong", polite=False)
        assert raw.hear()[1] == ""


def test_pika_is_told_what_is_wrong(url: str) -> None:
    wrong = pika.PlainCredentials("guest", "wrong")
    with pytest.raises(ProbableAuthenticationError), connected(url, credentials=wrong):
        pass
    with pytest.raises((ProbableAccessDeniedError, ConnectionClosedByBroker)) as caught:
        with connected(url, virtual_host="nowhere"):
            pass
    assert "530" in str(caught.value)
    assert "vhost nowhere not found" in str(caught.value)


@pytest.mark.parametrize(
    ("channel_max", "frame_max", "text"),
    [
        (2048, 131072, "negotiated channel_max = 2048 is higher than the maximum allowed value"),
        (0, 131072, "negotiated channel_max = 0 (no limit) is higher than the maximum"),
        (2047, 131073, "negotiated frame_max = 131073 is higher than the maximum allowed value"),
        (2047, 4095, "negotiated frame_max = 4095 is lower than the minimum allowed value"),
    ],
)
@ours_only
def test_nobody_gets_more_than_is_offered(
    url: str, channel_max: int, frame_max: int, text: str
) -> None:
    with Raw(url) as raw:
        start_ok(raw, "PLAIN", b"\0guest\0guest")
        raw.hear_of("connection.tune")
        raw.say(0, "connection.tune-ok", channel_max, frame_max, 0)
        code, found, _, _ = raw.hear_of("connection.close")
        assert code == 530
        assert text in found


def test_a_client_may_agree_on_the_smallest_frames(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands(frame_max=4_096).open(1)
        raw.say(1, "queue.declare", "", False, False, True, False, False, {"x": "x" * 4_100})
        assert raw.hear_of("connection.close")[0] == 501


def test_frames_before_the_agreement_have_4096_bytes_at_most(url: str) -> None:
    with Raw(url) as raw:
        raw.hear_of("connection.start")
        raw.say(0, "connection.start-ok", {"x": "x" * 3_900}, "PLAIN", b"\0guest\0guest", "en_US")
        raw.hear_of("connection.tune")
    with Raw(url) as raw:
        raw.hear_of("connection.start")
        raw.say(0, "connection.start-ok", {"x": "x" * 9_000}, "PLAIN", b"\0guest\0guest", "en_US")
        _, method, arguments = raw.hear()  # RabbitMQ says nothing, and closes after a while.
        assert (method, arguments[:1]) in (("connection.close", (501,)), ("", ()))


def test_a_secret_may_be_updated(url: str) -> None:
    with connected(url) as connection:
        connection.update_secret("guest", "why not")


def test_signs_of_life_are_given_and_asked_for(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands(heartbeat=1)
        raw.socket.settimeout(10)
        data = b""
        while HEARTBEAT not in data:
            data += raw.socket.recv(100)
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            while raw.socket.recv(100):
                assert time.monotonic() - began < 10


def test_channels_open_and_close(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1).open(2047)
        raw.say(1, "channel.close", 200, "bye", 0, 0)
        raw.hear_of("channel.close-ok")
        raw.open(1)
        raw.say(1, "channel.flow", True)
        assert raw.hear_of("channel.flow-ok") == (True,)
        raw.say(0, "connection.close", 200, "bye", 0, 0)
        raw.hear_of("connection.close-ok")


def test_a_closed_channel_hears_nothing_until_that_is_confirmed(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.say(1, "queue.purge", "no-such-queue", False)
        raw.say(1, "queue.declare", "", False, False, True, False, False, {})
        code, _, kind, method = raw.hear_of("channel.close")
        assert (code, kind, method) == (404, 50, 30)
        raw.say(1, "channel.close-ok")
        raw.open(1)


_MISSING: tuple[Any, ...] = ("queue.declare", "no-such-queue", True, False, False, False, False, {})


def test_a_close_that_crosses_the_brokers_own_ends_one_channel_only(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1).open(2)
        raw.say(1, *_MISSING)
        raw.say(1, "channel.close", 200, "bye", 0, 0)
        raw.say(1, "basic.qos", 0, 1, False)
        assert raw.hear_of("channel.close")[0] == 404
        raw.hear_of("channel.close-ok")
        raw.say(1, "channel.close-ok")
        raw.open(1)
        raw.say(2, "channel.flow", True)
        raw.hear_of("channel.flow-ok")


def test_a_number_is_not_free_before_the_end_of_its_channel_is_confirmed(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1)
        raw.say(1, *_MISSING)
        raw.say(1, "channel.close", 200, "bye", 0, 0)
        raw.say(1, "channel.open")
        raw.hear_of("channel.close")
        raw.hear_of("channel.close-ok")
        assert raw.hear_of("connection.close")[0] == 504


@ours_only
def test_a_close_behind_the_confirmation_of_the_brokers_own_is_ignored(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1)
        raw.say(1, *_MISSING)
        raw.hear_of("channel.close")
        raw.say(1, "channel.close-ok")
        raw.say(1, "channel.close", 200, "bye", 0, 0)
        raw.open(1)
        raw.say(3, "channel.close", 200, "bye", 0, 0)
        assert raw.hear_of("connection.close")[0] == 504


def test_the_ends_of_a_connection_may_cross(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1)
        raw.say(1, "channel.flow", False)
        raw.say(0, "connection.close", 200, "bye", 0, 0)
        raw.say(1, "basic.qos", 0, 1, False)
        assert raw.hear_of("connection.close")[0] == 540
        raw.hear_of("connection.close-ok")
        raw.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            raw.hear()
        raw.socket.settimeout(20)
        raw.say(0, "connection.close-ok")
        assert raw.hear()[1] == ""


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ((1, "basic.ack", 1, False), 504),
        ((1, "channel.open"), 504),
        ((0, "connection.tune-ok", 1, 1, 1), 504),
        ((1, "connection.open", "/"), 503),
        ((2, "channel.flow", False), 540),
        ((2, "basic.recover", False), 540),
        ((2, "basic.qos", 1, 1, False), 540),
        ((2, "queue.declare-ok", "q", 1, 1), 503),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(
    url: str, said: tuple[Any, ...], code: int
) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(2)
        if said[1] in ("channel.open", "connection.open") and said[0] == 1:
            raw.open(1)
        raw.say(*said)
        assert raw.hear_of("connection.close")[0] == code
        raw.say(0, "connection.close-ok")
        assert raw.hear()[1] == ""


_PUBLISH = ENCODERS["basic.publish"]("", "q", False, False)
_DEEP = b""
for _ in range(10_000):
    _DEEP = b"\1aF" + len(_DEEP).to_bytes(4, "big") + _DEEP


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b"\1\0\1\0\0\0\4\0\x3c\0\x0a\xcd", {501}),
        (b"\1\0\1\0\x10\0\0" + bytes(100_000), {501}),
        (b"\x09\0\1\0\0\0\0\xce", {501}),
        (b"\x08\0\1\0\0\0\0\xce", {501, 505}),
        (b"\2\0\1\0\0\0\x0e\0\x3c" + bytes(12) + b"\xce", {505}),
        (b"\3\0\1\0\0\0\1a\xce", {505}),
        (method_frame(1, _PUBLISH) + method_frame(1, ENCODERS["basic.ack"](1, False)), {505}),
        (method_frame(1, _PUBLISH) + b"\2\0\1\0\0\0\x0e\0\x32" + bytes(12) + b"\xce", {501, 505}),
        pytest.param(method_frame(1, b"\0\x3c\0\x63"), {503}, marks=ours_only),
        (method_frame(1, b"\0\x32\0\x0a\0"), {501}),
    ],
)
def test_frames_that_are_none_end_the_connection(url: str, data: bytes, codes: set[int]) -> None:
    with Raw(url) as raw, connected(url) as bystander:
        raw.shake_hands().open()
        raw.socket.sendall(data)
        heard = raw.hear()
        assert heard[1] == "connection.close"
        assert heard[2][0] in codes
        other = bystander.channel()
        queue = name(other)
        send(other, queue, b"x")
        assert got(other, queue)[2] == b"x"


def test_a_frame_that_never_ends_hurts_nobody(url: str) -> None:
    with Raw(url) as raw, connected(url) as bystander:
        raw.shake_hands().open()
        raw.socket.sendall(b"\1\0\1\0\0\x10\0\0\x3c")
        other = bystander.channel()
        queue = name(other)
        send(other, queue, b"x")
        assert got(other, queue)[2] == b"x"


@ours_only
def test_tables_that_are_too_deep_are_refused(url: str) -> None:
    table = len(_DEEP).to_bytes(4, "big") + _DEEP
    head = b"\0\x32\0\x0a\0\0\4deep\0"
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.socket.sendall(method_frame(1, head + table))
        code, text, _, _ = raw.hear_of("connection.close")
        assert code == 501
        assert "inside one another" in text


@ours_only
def test_headers_that_are_too_deep_match_nothing(url: str) -> None:
    properties = b"\x20\0" + len(_DEEP).to_bytes(4, "big") + _DEEP
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.say(1, "queue.declare", "", False, False, True, False, False, {})
        queue = raw.hear_of("queue.declare-ok")[0]
        raw.say(1, "queue.bind", queue, "amq.headers", "", False, {"x-match": "any", "a": "b"})
        raw.hear_of("queue.bind-ok")
        payload = ENCODERS["basic.publish"]("amq.headers", "", False, False)
        raw.socket.sendall(b"".join(content_frames(1, payload, properties, b"x", 131_072)))
        raw.say(1, "queue.declare", queue, True, False, False, False, False, {})
        assert raw.hear_of("queue.declare-ok") == (queue, 0, 0)


@pytest.mark.parametrize(
    "arguments",
    [{"x-match": "sometimes"}, {"x-match": 3}, {"x-match": ["all"]}],
)
def test_hostile_arguments_of_a_headers_exchange_are_refused(
    url: str, arguments: dict[str, Any]
) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.say(1, "queue.declare", "", False, False, True, False, False, {})
        queue = raw.hear_of("queue.declare-ok")[0]
        raw.say(1, "queue.bind", queue, "amq.headers", "", False, arguments)
        assert raw.hear_of("channel.close")[0] == 406


def test_all_channels_that_there_are(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands()
        opens = [method_frame(n, ENCODERS["channel.open"]()) for n in range(1, 2048)]
        raw.socket.sendall(b"".join(opens))
        for _ in opens:
            raw.hear_of("channel.open-ok")
        raw.say(65_535, "channel.open")
        assert raw.hear_of("connection.close")[0] == 530


@ours_only
def test_whoever_does_not_shake_hands_is_dropped(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onelog.gateways.amqp.session.HANDSHAKE_MS_MAX", 500)
    with Raw(url) as raw:
        raw.hear_of("connection.start")
        assert raw.hear()[1] == ""


@ours_only
def test_clients_are_told_that_the_broker_goes() -> None:
    with onelog.embedded(amqp=True) as mq:
        raw = Raw(mq.amqp_url).shake_hands()
    with raw:
        code, text, _, _ = raw.hear_of("connection.close")
        assert code == 320
        assert text == (
            "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
        )
        assert raw.hear()[1] == ""


@ours_only
def test_publishers_wait_while_the_disk_is_full(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = [""]
    monkeypatch.setattr("onelog.core.publish.Publisher.refusal", lambda publish: alarm[0])
    told: list[str] = []
    with connected(url) as connection:
        connection.add_on_connection_blocked_callback(lambda *_: told.append("blocked"))
        connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        publisher = connection.channel()
        queue = name(publisher)
        send(publisher, queue, b"1")
        assert got(publisher, queue)[2] == b"1"
        alarm[0] = "the disk is full"
        wait_until(lambda: connection.process_data_events(0.01) or told == ["blocked"])
        send(publisher, queue, b"2")
        alarm[0] = ""
        wait_until(lambda: connection.process_data_events(0.01) or told[1:] == ["unblocked"])
        assert got(publisher, queue)[2] == b"2"


@ours_only
def test_a_consumer_gets_messages_that_are_larger_than_what_may_wait_for_it() -> None:
    with (
        onelog.embedded(
            amqp=True,
            broker__memory_queue_bytes_max=24 << 20,
            broker__write_buffer_bytes_max=64 << 10,
        ) as mq,
        connected(mq.amqp_url) as sending,
        Raw(mq.amqp_url).shake_hands(heartbeat=1).open(1) as taking,
    ):
        publisher = sending.channel()
        publisher.queue_declare("q")
        blocked: list[object] = []
        sending.add_on_connection_blocked_callback(lambda *_: blocked.append("blocked"))
        sending.add_on_connection_unblocked_callback(lambda *_: blocked.append("unblocked"))
        send(publisher, "q", *[bytes(5 << 20)] * 4)
        wait_until(lambda: sending.process_data_events(0.01) or blocked == ["blocked"])
        taking.say(1, "basic.consume", "q", "", False, True, False, False, {})
        taking.hear_of("basic.consume-ok")
        time.sleep(1.5)  # There are signs of life to write meanwhile.
        for _ in range(4):
            taking.hear_of("basic.deliver")
        wait_until(lambda: sending.process_data_events(0.01) or blocked[1:] == ["unblocked"])


@ours_only
def test_publishers_wait_while_memory_is_full_and_nothing_is_lost() -> None:
    told: list[str] = []
    with (
        onelog.embedded(amqp=True, broker__memory_queue_bytes_max=1 << 20) as mq,
        connected(mq.amqp_url) as connection,
        connected(mq.amqp_url) as other,
    ):
        connection.add_on_connection_blocked_callback(
            lambda _, frame: told.append(frame.method.reason)
        )
        connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        publisher, consumer = connection.channel(), other.channel()
        publisher.queue_declare("q")
        sent = [b"%d" % number * 2_000 for number in range(100, 400)]
        for body in sent:
            send(publisher, "q", body)
        wait_until(lambda: connection.process_data_events(0.01) or told == ["low on memory"])
        found: list[bytes] = []

        def all_came() -> bool:
            found.extend(bodies(consumer, "q"))
            return len(found) == len(sent)

        wait_until(all_came)
        assert found == sent
        wait_until(lambda: connection.process_data_events(0.01) or told[-1] == "unblocked")


@ours_only
def test_nothing_is_left_of_a_connection(url: str) -> None:
    import gc

    def sessions() -> set[int]:
        gc.collect()
        # Not isinstance: it would wake lazy objects of other people's.
        return {id(each) for each in gc.get_objects() if type(each) is AmqpSession}

    others = sessions()  # Of clients that other tests of this process keep.
    with connected(url) as connection:
        other = connection.channel()
        other.basic_consume(name(other), lambda *told: None)
    with Raw(url) as raw:
        raw.shake_hands().open()

    wait_until(lambda: sessions() <= others)


def test_a_port_that_answers_slowly_read_byte_by_byte(url: str) -> None:
    parameters = pika.URLParameters(url)
    with socket.create_connection((parameters.host, parameters.port)) as raw:
        for byte in GREETING:
            raw.sendall(bytes((byte,)))
        assert raw.recv(7)[:3] == b"\1\0\0"


def test_what_waits_behind_the_end_of_its_channel_is_for_the_next_one_of_that_number(
    url: str,
) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open()
        said: list[tuple[Any, ...]] = [
            ("tx.select",),
            ("tx.commit",),  # What follows waits for it.
            ("channel.close", 200, "", 0, 0),
            ("channel.open",),
            ("basic.qos", 0, 7, False),
        ]
        raw.socket.sendall(b"".join(method_frame(1, ENCODERS[each[0]](*each[1:])) for each in said))
        heard = [raw.hear()[1] for _ in said]
        assert heard == [
            "tx.select-ok",
            "tx.commit-ok",
            "channel.close-ok",
            "channel.open-ok",
            "basic.qos-ok",
        ]
