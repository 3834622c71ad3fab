"""Attacks on AMQP and on RabbitMQ's management API: what gets through ends who sent it, at most."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

import onelog
from onelog.core.routing import publishing
from onelog.core.routing.arguments import to_json
from onelog.core.transactions import staged
from onelog.errors import PreconditionFailedError
from onelog.gateways.amqp import session
from onelog.gateways.http.requests import answer
from onelog.record.forms.amqp_fields import encode_properties
from onelog.wire.amqp.frame import content_frames, method_frame
from onelog.wire.amqp.methods import ENCODERS
from tests.gateways.amqp.live import Raw, bodies, channel, connected, got, name, ready, send, url
from tests.gateways.http.live import http
from tests.waiting import wait_until

__all__ = ["channel", "url"]

PATIENCE_SECONDS = 2.0
"""What somebody else waits for an answer at most, on a machine that is busy."""
MISSING: tuple[Any, ...] = ("queue.declare", "none", True, False, False, False, False, {})


@pytest.fixture
def bystander(url: str) -> Iterator[BlockingChannel]:
    """A client that is answered in time when the attack is over."""
    with connected(url) as connection:
        found = connection.channel()
        yield found
        began = time.monotonic()
        found.basic_qos(prefetch_count=1)
        assert time.monotonic() - began < PATIENCE_SECONDS


def _published(channel: int, key: str, properties: dict[str, Any], body: bytes = b"x") -> bytes:
    payload = ENCODERS["basic.publish"]("", key, False, False)
    raw = encode_properties(properties)
    return b"".join(content_frames(channel, payload, raw, body, 1 << 20))


# -- before anybody is known -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [4_097, 9_000, 100_000, 4_000_000_000])
@pytest.mark.usefixtures("bystander")
def test_nobody_sends_large_frames_before_he_is_known(url: str, size: int) -> None:
    with Raw(url) as raw:
        raw.hear_of("connection.start")
        raw.socket.sendall(b"\1\0\0" + size.to_bytes(4, "big") + bytes(min(size, 100_000)))
        assert raw.hear_of("connection.close")[0] == 501


@pytest.mark.usefixtures("bystander")
def test_large_frames_are_refused_after_each_step_of_the_handshake(url: str) -> None:
    for step in range(3):
        with Raw(url) as raw:
            raw.hear_of("connection.start")
            if step:
                raw.say(0, "connection.start-ok", {}, "PLAIN", b"\0guest\0guest", "en_US")
                raw.hear_of("connection.tune")
            if step > 1:
                raw.say(0, "connection.tune-ok", 2_047, 4_096, 0)
            raw.socket.sendall(b"\1\0\0\0\0\x20\0" + bytes(8_200))
            assert raw.hear_of("connection.close")[0] == 501


def test_many_half_frames_of_strangers_cost_little(url: str, bystander: BlockingChannel) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            raw = stack.enter_context(Raw(url))
            raw.socket.sendall(b"\1\0\0\0\0\x0f\xf0" + bytes(4_000))
        assert name(bystander)


# -- ends that cross -------------------------------------------------------------------------------


def test_closes_that_cross_a_thousand_times_end_no_connection(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(2)
        round_of = [("channel.open",), MISSING, ("channel.close", 200, "", 0, 0)]
        round_of.append(("channel.close-ok",))
        frames = [method_frame(1, ENCODERS[each[0]](*each[1:])) for each in round_of]
        raw.socket.sendall(b"".join(frames) * 1_000)
        for _ in range(1_000):
            for expected in ("channel.open-ok", "channel.close", "channel.close-ok"):
                raw.hear_of(expected)
        raw.say(2, "channel.flow", True)
        raw.hear_of("channel.flow-ok")


@pytest.mark.usefixtures("bystander")
def test_a_flood_of_closes_on_a_closing_channel_is_answered_and_nothing_else(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1)
        raw.say(1, *MISSING)
        raw.hear_of("channel.close")
        close = method_frame(1, ENCODERS["channel.close"](200, "", 0, 0))
        raw.socket.sendall(close * 5_000)
        for _ in range(5_000):
            raw.hear_of("channel.close-ok")
        raw.say(1, "channel.close-ok")
        raw.open(1)


@pytest.mark.usefixtures("bystander")
def test_a_flood_of_closes_behind_the_end_of_a_channel_is_not_even_answered(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1)
        raw.say(1, *MISSING)
        raw.hear_of("channel.close")
        raw.say(1, "channel.close-ok")
        raw.socket.sendall(method_frame(1, ENCODERS["channel.close"](200, "", 0, 0)) * 10_000)
        raw.open(1)


def test_nothing_is_published_on_a_channel_that_has_ended(
    url: str, bystander: BlockingChannel
) -> None:
    queue = bystander.queue_declare("ended", durable=True).method.queue
    with Raw(url) as raw:
        raw.shake_hands().open(1).open(2)
        raw.say(1, *MISSING)
        raw.hear_of("channel.close")
        raw.socket.sendall(_published(1, queue, {}) * 500)
        raw.say(1, "channel.close-ok")
        raw.say(2, "channel.flow", True)
        raw.hear_of("channel.flow-ok")
        assert ready(bystander, queue) == 0
    bystander.queue_delete(queue)


@pytest.mark.usefixtures("bystander")
def test_who_never_confirms_the_end_of_a_connection_is_dropped(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CLOSE_MS_MAX", 100)
    with Raw(url) as raw:
        raw.shake_hands().open(1)
        raw.say(1, "channel.flow", False)
        raw.hear_of("connection.close")
        for _ in range(1_000):
            raw.say(0, "connection.close", 200, "", 0, 0)
        said = raw.hear()
        while said[1] == "connection.close-ok":
            said = raw.hear()
        assert said[1] == ""


@pytest.mark.usefixtures("bystander")
def test_garbage_behind_the_end_of_a_connection_is_not_looked_at_twice(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1)
        raw.say(1, "channel.flow", False)
        raw.hear_of("connection.close")
        with contextlib.suppress(ConnectionError):
            raw.socket.sendall(b"\x07" * 1_000_000)
        raw.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            raw.hear()


# -- dead letters ----------------------------------------------------------------------------------


def _dying(channel: BlockingChannel, **more: Any) -> tuple[str, str]:
    """A queue whose messages die at once, and where they go."""
    dead = name(channel)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, **more}
    return name(channel, arguments={"x-message-ttl": 0, **arguments}), dead


@pytest.mark.parametrize(
    "deaths",
    [
        "text",
        7,
        [],
        [1, "x", None],
        [[[]]],
        [{}],
        [{"queue": []}],
        [{"queue": {"a": 1}}],
        [{"queue": "q", "reason": [1], "count": "many"}],
        [{"count": (1 << 63) - 1}] * 3,
    ],
)
def test_forged_deaths_of_any_form_stop_no_queue(channel: BlockingChannel, deaths: Any) -> None:
    queue, dead = _dying(channel)
    properties = pika.BasicProperties(headers={"x-death": deaths})
    channel.basic_publish("", queue, b"forged", properties)
    channel.basic_publish("", queue, b"honest")
    assert [got(channel, dead)[2] for _ in range(2)] == [b"forged", b"honest"]


def test_a_forged_count_of_deaths_ends_at_the_largest_number(channel: BlockingChannel) -> None:
    queue, dead = _dying(channel)
    most = pika.compat.long((1 << 63) - 1)
    deaths = [{"queue": queue, "reason": "expired", "count": most}]
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"x-death": deaths}))
    _, properties, _ = got(channel, dead)
    assert properties.headers["x-death"] == deaths


def test_forged_rejections_make_no_circle_that_goes_on_by_itself(channel: BlockingChannel) -> None:
    queue = "round"
    arguments = {
        "x-message-ttl": 0,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
    }
    channel.queue_declare(queue, exclusive=True, arguments=arguments)
    deaths = [{"queue": queue, "reason": "rejected", "count": 1}] * 50
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"x-death": deaths}))
    wait_until(lambda: ready(channel, queue) == 0)


def test_a_forged_circle_only_costs_its_own_message(channel: BlockingChannel) -> None:
    queue, dead = _dying(channel)
    deaths = [{"queue": dead, "reason": "expired", "count": 1}]
    channel.basic_publish("", queue, b"own", pika.BasicProperties(headers={"x-death": deaths}))
    channel.basic_publish("", queue, b"others")
    assert got(channel, dead)[2] == b"others"
    assert bodies(channel, dead) == []


@pytest.mark.usefixtures("bystander")
def test_thousands_of_forged_deaths_are_grouped_in_no_time(channel: BlockingChannel) -> None:
    queue, dead = _dying(channel)
    deaths = [{"queue": str(number % 1_000), "reason": "expired"} for number in range(3_000)]
    properties = pika.BasicProperties(headers={"x-death": deaths})
    for _ in range(10):
        channel.basic_publish("", queue, b"x", properties)
    found = [got(channel, dead)[1].headers["x-death"] for _ in range(10)]
    assert [len(each) for each in found] == [1_001] * 10
    assert found[0][1]["count"] == 3


def test_an_expiring_message_cannot_be_kept_alive_by_giving_it_back(
    channel: BlockingChannel,
) -> None:
    queue = name(channel)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(expiration="400"))
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        method, _, _ = channel.basic_get(queue)
        if method is not None:
            channel.basic_nack(method.delivery_tag, requeue=True)
    wait_until(lambda: ready(channel, queue) == 0)


# -- transactions ----------------------------------------------------------------------------------


def test_a_transaction_that_is_too_large_ends_its_channel_and_leaves_nothing(
    url: str, bystander: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "COUNT_MAX", 100)
    bystander.queue_declare("kept", durable=True)
    bystander.queue_declare("lost")
    for queue in ("kept", "lost"):  # Of both kinds: on disk, and in memory.
        with connected(url) as connection:
            channel = connection.channel()
            channel.tx_select()
            send(channel, queue, *[b"x"] * 101)
            with pytest.raises(ChannelClosedByBroker) as caught:
                channel.tx_commit()
            assert caught.value.reply_code == 406
            assert connection.channel().is_open
        assert ready(bystander, queue) == 0
        bystander.queue_delete(queue)


def test_all_open_transactions_have_a_limit_and_those_before_are_committed(
    url: str, bystander: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "BYTES_OF_ALL_MAX", 100_000)
    bystander.queue_declare("memory")
    with connected(url) as honest, connected(url) as greedy:
        first, second = honest.channel(), greedy.channel()
        first.tx_select()
        second.tx_select()
        send(first, "memory", bytes(40_000))
        first.basic_qos(prefetch_count=1)
        send(second, "memory", bytes(80_000))
        with pytest.raises(ConnectionClosedByBroker) as caught:
            second.basic_qos(prefetch_count=1)
        assert caught.value.reply_code == 506
        first.tx_commit()
        assert ready(bystander, "memory") == 1
        first.tx_select()
    bystander.queue_delete("memory")


def test_abandoned_transactions_are_worth_nothing_and_cost_nothing(
    url: str, bystander: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "BYTES_OF_ALL_MAX", 100_000)
    bystander.queue_declare("memory")
    for _ in range(20):
        with connected(url) as connection:
            channel = connection.channel()
            channel.tx_select()
            send(channel, "memory", bytes(60_000))
            channel.basic_qos(prefetch_count=1)
    assert ready(bystander, "memory") == 0
    bystander.queue_delete("memory")


def test_a_queue_that_is_gone_at_the_commit_gets_nothing(
    url: str, bystander: BlockingChannel
) -> None:
    with connected(url) as connection:
        channel = connection.channel()
        channel.tx_select()
        for durable in (True, False):
            bystander.queue_declare("gone", durable=durable)
            send(channel, "gone", b"x")
            channel.basic_qos(prefetch_count=1)
            bystander.queue_delete("gone")
            with contextlib.suppress(ChannelClosedByBroker):
                channel.tx_commit()
            channel = connection.channel()
            channel.tx_select()
            bystander.queue_declare("gone", durable=durable)
            assert ready(bystander, "gone") == 0
            bystander.queue_delete("gone")


def test_a_large_commit_lets_others_work_in_between(
    url: str, bystander: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "APPEND_COUNT_MAX", 100)
    monkeypatch.setattr(staged, "SOME_COUNT_MAX", 100)
    monkeypatch.setattr(publishing, "HELD_AT_ONCE", 100)
    for durable in (True, False):
        bystander.queue_declare("much", durable=durable)
        with connected(url) as connection:
            channel = connection.channel()
            channel.tx_select()
            send(channel, "much", *[bytes(500)] * 3_000)
            channel.tx_commit()
            assert ready(bystander, "much") == 3_000
        bystander.queue_delete("much")


# -- consumers -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bystander")
def test_a_thousand_consumers_in_a_window_of_one_starve_nobody(channel: BlockingChannel) -> None:
    queues = [name(channel) for _ in range(20)]
    for each in queues:
        send(channel, each, *[b"x"] * 5)
    served: set[str] = set()

    def take(on: Any, method: Any, properties: Any, body: bytes) -> None:
        served.add(method.routing_key)
        on.basic_ack(method.delivery_tag)

    channel.basic_qos(prefetch_count=1, global_qos=True)
    for each in queues:
        for _ in range(25):
            channel.basic_consume(each, take)
    wait_until(lambda: channel.connection.process_data_events(0.01) or served == set(queues))


def test_who_does_not_read_is_sent_one_large_message_and_no_more() -> None:
    with (
        onelog.embedded(amqp=True, broker__write_buffer_bytes_max=64 << 10) as mq,
        connected(mq.amqp_url) as sending,
        Raw(mq.amqp_url).shake_hands().open(1) as deaf,
    ):
        publisher = sending.channel()
        publisher.queue_declare("q")
        send(publisher, "q", *[bytes(4 << 20)] * 8)
        assert ready(publisher, "q") == 8
        deaf.say(1, "basic.consume", "q", "", False, False, False, False, {})
        wait_until(lambda: ready(publisher, "q") < 8)
        time.sleep(0.3)
        assert ready(publisher, "q") >= 5


# -- the management API ----------------------------------------------------------------------------

ANN, BOB = httpx.BasicAuth("ann", "secret"), httpx.BasicAuth("bob", "b")
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


async def _has_users(client: httpx.AsyncClient) -> None:
    given = {"password": "secret", "tags": "administrator"}
    assert (await client.put("/api/users/ann", json=given)).is_success
    client.auth = ANN
    assert (await client.put("/api/users/bob", json={"password": "b", "tags": ""})).is_success


@pytest.mark.parametrize("other", ["a~b", "a~", "~a", "%2561", "ab", "A"])
async def test_everything_in_one_vhost_is_nothing_in_another(tmp_path: Path, other: str) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        await _has_users(client)
        for vhost in ("a", other):
            assert (await client.put(f"/api/vhosts/{vhost}")).status_code == 201
            assert (await client.put(f"/api/queues/{vhost}/q", json={})).status_code == 201
        assert (await client.put("/api/permissions/a/bob", json=EVERYTHING)).is_success
        client.auth = BOB
        assert (await client.put("/api/queues/a/mine", json={})).status_code == 201
        for method, path in (
            ("PUT", f"/api/queues/{other}/mine"),
            ("DELETE", f"/api/queues/{other}/q"),
            ("POST", f"/api/queues/{other}/q/get"),
            ("PUT", "/api/queues/%2F/mine"),
            ("POST", f"/api/exchanges/{other}/amq.default/publish"),
        ):
            body = {"routing_key": "q", "payload": "x", "properties": {}, "count": 1}
            told = await client.request(method, path, json=None if method == "DELETE" else body)
            assert told.status_code in (403, 404), (method, path, told.text)


@pytest.mark.parametrize("pattern", ["~b~q", "^~b~", "b~q", "%2F~.*", "q\n.*", "(?s).*~b~.*"])
async def test_no_pattern_leads_out_of_its_vhost(tmp_path: Path, pattern: str) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        await _has_users(client)
        for vhost in ("a", "b"):
            await client.put(f"/api/vhosts/{vhost}")
            await client.put(f"/api/queues/{vhost}/q", json={})
        given = {"configure": pattern, "write": pattern, "read": pattern}
        assert (await client.put("/api/permissions/a/bob", json=given)).is_success
        told = await client.post("/api/queues/b/q/get", json={"count": 1}, auth=BOB)
        assert told.status_code in (403, 404)


async def test_a_name_that_is_no_text_ends_its_connection_and_no_other(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, client):
        await _has_users(client)
        given = {"configure": "^q", "write": "", "read": ""}
        assert (await client.put("/api/permissions/%2F/bob", json=given)).is_success

        def attempt() -> None:
            with Raw(f"amqp://bob:b@127.0.0.1:{server.config.amqp.port}/") as raw:
                raw.hear_of("connection.start")
                raw.say(0, "connection.start-ok", {}, "PLAIN", b"\0bob\0b", "en_US")
                raw.hear_of("connection.tune")
                raw.say(0, "connection.tune-ok", 2_047, 4_096, 0)
                raw.say(0, "connection.open", "/")
                raw.hear_of("connection.open-ok")
                raw.open(1)
                declare = ENCODERS["queue.declare"]("ZZ", False, False, False, False, False, {})
                raw.socket.sendall(method_frame(1, declare.replace(b"ZZ", b"\xff\xfe")))
                assert raw.hear_of("connection.close")[0] == 501

        await asyncio.to_thread(attempt)


@pytest.mark.parametrize(
    "body",
    [
        {"password": "x" * 100_000, "tags": ""},
        {"password": 7, "tags": ""},
        {"password": "x", "tags": [["administrator"]]},
        {"password": "x", "tags": 7},
        {"password": "x", "tags": None},
        {"password_hash": "x" * 44, "tags": "administrator"},
    ],
)
async def test_users_that_make_no_sense_are_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        await _has_users(client)
        assert (await client.put("/api/users/eve", json=body)).status_code == 400
        assert (await client.get("/api/users/eve")).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/api/users/ann/",
        "/api/users/ann%2F",
        "/api/users//ann",
        "/api//users/ann",
        "/API/users/ann",
        "/api/users/ann/.",
        "/api/users/ann;x",
    ],
)
async def test_no_spelling_of_a_path_gets_round_the_question_who_may(
    tmp_path: Path, path: str
) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        await _has_users(client)
        for auth in (BOB, None):
            for method in ("GET", "DELETE"):
                told = await client.request(method, path, auth=auth)
                assert told.status_code >= 400, (method, path)
        assert (await client.get("/api/users/ann")).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
@pytest.mark.parametrize(
    "mark",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"referer": "http://evil.example/"},
        {"cookie": "a=b"},
        {"sec-fetch-mode": "no-cors"},
    ],
)
async def test_a_form_of_another_page_declares_nothing(
    tmp_path: Path, kind: str, mark: dict[str, str]
) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        headers = {**mark, **({"content-type": kind} if kind else {})}
        for method, path in (("POST", "/api/definitions"), ("PUT", "/api/queues/%2F/q")):
            told = await client.request(method, path, content=b'{"queues": []}', headers=headers)
            assert told.status_code in (400, 403)
        assert (await client.get("/api/queues")).json() == []


# -- names that are no text ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [{"\udcff": 1}, {"a": {"\udc80b": 1}}, {"a": [{"\udcff": 1}]}]
)
def test_a_name_of_an_argument_that_is_no_utf_8_is_refused(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises(PreconditionFailedError, match="no UTF-8"):
        to_json(arguments)


def test_names_that_are_no_utf_8_are_marked_where_they_are_listed() -> None:
    assert answer([{"a": {"\udcff": ["x\udcff", 1]}}]).body == (
        b'[{"a":{"\xef\xbf\xbd":["x\xef\xbf\xbd",1]}}]'
    )
