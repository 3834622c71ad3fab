"""Sessions: taken over, resumed, expired; over connections, and over restarts of the broker."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onelog
from onelog.gateways.mqtt.client import MqttClient
from onelog.wire.mqtt.codes import V5, V311, Packet, Reason
from onelog.wire.mqtt.packets import Will
from onelog.wire.mqtt.properties import Properties, Property
from tests.gateways.mqtt.raw import Raw, payloads, properties_of, v5
from tests.waiting import wait_until

KEPT: Properties = {Property.SESSION_EXPIRY: 1_000}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with onelog.embedded(mqtt=True) as mq:
        yield mq.mqtt_port


def publish(port: int, topic: str, *contents: bytes, qos: int = 1, retain: bool = False) -> None:
    """Send messages, and wait until they are taken."""
    with Raw(port) as sender:
        sender.connect("publisher")
        for number, content in enumerate(contents, 1):
            sender.publish(topic, content, qos, number, retain=retain)
            if qos == 1:
                sender.expect(Packet.PUBACK)
            else:
                sender.expect(Packet.PUBREC)
                sender.answer(Packet.PUBREL, number)
                sender.expect(Packet.PUBCOMP)


def test_the_last_connection_has_the_client_id(port: int) -> None:
    with v5(port) as first, v5(port) as second:
        first.connect("twice")
        second.connect("twice")
        assert first.expect(Packet.DISCONNECT).reason == Reason.SESSION_TAKEN_OVER
        assert first.ends()
        second.subscribe(("t", 0))
        second.publish("t", b"here")
        assert second.message().payload == b"here"


@pytest.mark.parametrize("level", [V311, V5])
def test_messages_wait_for_a_client_that_is_away(port: int, level: int) -> None:
    name = f"away-{level}"
    kept: dict[str, Any] = {"properties": KEPT} if level == V5 else {}
    with Raw(port, level) as client:
        assert client.connect(name, clean=False, **kept).packet_id == 0
        client.subscribe((f"{name}/#", 1))
    publish(port, f"{name}/x", b"1", b"2", b"3")
    with Raw(port, level) as client:
        assert client.connect(name, clean=False, **kept).packet_id == 1
        found = client.messages(3)
        assert payloads(found) == [b"1", b"2", b"3"]
        client.answer(Packet.PUBACK, found[0].packet_id)
        client.send(b"\xc0\0")
        client.read()
    with Raw(port, level) as client:
        client.connect(name, clean=False, **kept)
        again = client.messages(2)
        assert payloads(again) == [b"2", b"3"]
        assert all(each.flags & 8 for each in again)
        assert [each.packet_id for each in again] == [each.packet_id for each in found[1:]]
        for each in again:
            client.answer(Packet.PUBACK, each.packet_id)
        client.send(b"\xc0\0")
        client.read()
    with Raw(port, level) as client:
        assert client.connect(name, clean=True).packet_id == 0
        assert client.is_quiet()


def test_a_session_ends_when_its_time_is_over(port: int) -> None:
    with v5(port) as client:
        client.connect("short", properties={Property.SESSION_EXPIRY: 1})
        client.subscribe(("short", 1))
    time.sleep(1.5)
    with v5(port) as client:
        assert client.connect("short", clean=False, properties=KEPT).packet_id == 0
        publish(port, "short", b"nobody")
        assert client.is_quiet()
        client.send(b"\xe0\x07\0\x05\x11\0\0\0\0")  # It ends with the connection after all.
        assert client.ends()
    with v5(port) as client:
        assert client.connect("short", clean=False).packet_id == 0


def test_a_kept_session_can_go_on_to_its_end(port: int) -> None:
    with v5(port) as client:
        client.connect("last", properties=KEPT)
        client.subscribe(("last", 1))
    publish(port, "last", b"waited")
    with v5(port) as client:
        assert client.connect("last", clean=False).packet_id == 1  # Expiry 0: it ends with this.
        assert client.message().payload == b"waited"
    with v5(port) as client:
        assert client.connect("last", clean=False, properties=KEPT).packet_id == 0
        assert client.is_quiet()


def test_subscriptions_of_qos_0_come_back_too(port: int) -> None:
    with v5(port) as client:
        client.connect("zero", properties=KEPT)
        client.subscribe(("zero/a", 0), ("zero/b", 2))
    with v5(port) as client:
        client.connect("zero", clean=False, properties=KEPT)
        publish(port, "zero/a", b"a")
        assert client.message().flags >> 1 == 0
        publish(port, "zero/b", b"b", qos=2)
        assert client.message().flags >> 1 == 2


def test_overlapping_filters_of_a_kept_session_are_one_delivery(port: int) -> None:
    with v5(port) as client:
        client.connect("lap", properties=KEPT)
        client.subscribe(("lap/#", 0), about={Property.SUBSCRIPTION_ID: [1]})
        client.subscribe(("lap/x", 1), about={Property.SUBSCRIPTION_ID: [2]})
        publish(port, "lap/x", b"once")
        message = client.message()
        assert properties_of(message)[Property.SUBSCRIPTION_ID] == [1, 2]
        assert client.is_quiet()
        publish(port, "lap/y", b"live")
        assert client.message().payload == b"live"


def test_retained_messages_come_to_a_kept_session(port: int) -> None:
    publish(port, "kept/r", b"old", retain=True)
    with v5(port) as client:
        client.connect("kept", properties=KEPT)
        client.subscribe(("kept/+", 1))
        message = client.message()
        assert (message.payload, message.flags & 1, message.flags >> 1 & 3) == (b"old", 1, 1)
    with v5(port) as client:
        client.connect("kept", clean=False, properties=KEPT)
        again = client.message()
        assert (again.payload, again.packet_id) == (b"old", message.packet_id)


def test_messages_that_wait_expire(port: int) -> None:
    with v5(port) as client:
        client.connect("late", properties=KEPT)
        client.subscribe(("late", 1))
    with v5(port) as sender:
        sender.connect("publisher")
        sender.publish("late", b"short", 1, 1, about={Property.MESSAGE_EXPIRY: 1})
        sender.publish("late", b"long", 1, 2, about={Property.MESSAGE_EXPIRY: 90})
        sender.expect(Packet.PUBACK)
        sender.expect(Packet.PUBACK)
    time.sleep(1.3)
    with v5(port) as client:
        client.connect("late", clean=False, properties=KEPT)
        message = client.message()
        assert message.payload == b"long"
        assert properties_of(message)[Property.MESSAGE_EXPIRY] < 90


def test_nothing_is_left_of_a_connection_whose_session_keeps_messages(port: int) -> None:
    """Nor is it left to the collector, which would stop everybody for all filters of such."""

    def clients() -> set[int]:
        return {id(each) for each in gc.get_objects() if type(each) is MqttClient}

    gc.collect()
    others = clients()
    gc.disable()
    try:
        with v5(port) as client:
            client.connect("keeps", properties=KEPT)
            client.subscribe(("$share/keeps/k/#", 2), ("k/#", 2))
            publish(port, "k/1", b"1", b"2", b"3", qos=2)
            client.messages(4)
        wait_until(lambda: clients() <= others)
    finally:
        gc.enable()


def test_a_sent_message_of_a_shared_filter_with_qos_2_stays_its_client_s(port: int) -> None:
    with v5(port) as one, v5(port) as two:
        one.connect("share-1", properties=KEPT)
        one.subscribe(("$share/two/q", 2))
        publish(port, "q", b"mine", qos=2)
        message = one.message()
        two.connect("share-2")
        two.subscribe(("$share/two/q", 2))
        one.socket.close()
        assert two.is_quiet()
        with v5(port) as one_again:
            one_again.connect("share-1", clean=False, properties=KEPT)
            again = one_again.message()
            assert (again.payload, again.packet_id) == (b"mine", message.packet_id)
            assert again.flags & 8


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    will = Will("gone", b"will", 1, False, {Property.WILL_DELAY: 1})
    with onelog.embedded(tmp_path, mqtt=True) as mq:
        publish(mq.mqtt_port, "kept/r", b"retained", retain=True)
        with v5(mq.mqtt_port) as client:
            client.connect("restart", properties=KEPT, will=will)
            client.subscribe(("to/#", 2), about={Property.SUBSCRIPTION_ID: [9]})
            client.subscribe(("$share/g/work", 1), ("zero", 0))
            publish(mq.mqtt_port, "to/a", b"1", b"2")
            first = client.messages(2)
            client.answer(Packet.PUBACK, first[0].packet_id)
            client.send(b"\xc0\0")
            client.read()
        publish(mq.mqtt_port, "to/b", b"3")
        publish(mq.mqtt_port, "work", b"shared")
    with onelog.embedded(tmp_path, mqtt=True) as mq, v5(mq.mqtt_port) as reader:
        reader.connect("reader")
        reader.subscribe(("kept/#", 0), ("gone", 0))
        found = reader.messages(2)
        assert sorted(payloads(found)) == [b"retained", b"will"]
        with v5(mq.mqtt_port) as client:
            assert client.connect("restart", clean=False, properties=KEPT).packet_id == 1
            found = client.messages(3)
            assert sorted(payloads(found)) == [b"2", b"3", b"shared"]
            (again,) = (each for each in found if each.payload == b"2")
            assert again.packet_id == first[1].packet_id
            assert again.flags & 8
            assert properties_of(again)[Property.SUBSCRIPTION_ID] == [9]
            publish(mq.mqtt_port, "zero", b"live")
            assert client.message().payload == b"live"


def test_clean_sessions_touch_no_disk(tmp_path: Path) -> None:
    with onelog.embedded(tmp_path, mqtt=True) as mq, v5(mq.mqtt_port) as reader:
        reader.connect("reader")
        reader.subscribe(("m/#", 2))
        with v5(mq.mqtt_port) as sender:
            sender.connect("sender")
            sender.publish("m/0", b"0")
        publish(mq.mqtt_port, "m/1", b"1")
        publish(mq.mqtt_port, "m/2", b"2", qos=2)
        assert payloads(reader.messages(3)) == [b"0", b"1", b"2"]
        log = tmp_path / "store" / "commitlog"
        assert not log.exists() or not list(log.iterdir())
