"""Messages between clients: QoS, retained ones, subscriptions and their options, wills."""

import time
from collections.abc import Iterator

import pytest

import onelog
from onelog.wire.mqtt.codes import V5, V31, V311, Packet, Reason
from onelog.wire.mqtt.packets import Will
from onelog.wire.mqtt.properties import Properties, Property
from tests.gateways.mqtt.raw import Raw, payloads, properties_of, v5

NO_LOCAL, AS_PUBLISHED, IF_NEW, NEVER = 4, 8, 16, 32


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with onelog.embedded(mqtt=True) as mq:
        yield mq.mqtt_port


def done(client: Raw, qos: int, packet_id: int) -> None:
    """The broker's side of a PUBLISH."""
    if qos == 1:
        assert client.expect(Packet.PUBACK).packet_id == packet_id
    elif qos == 2:
        assert client.expect(Packet.PUBREC).packet_id == packet_id
        client.answer(Packet.PUBREL, packet_id)
        assert client.expect(Packet.PUBCOMP).packet_id == packet_id


@pytest.mark.parametrize("level", [V31, V311, V5])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_comes_with_the_lower_qos(port: int, level: int, granted: int, qos: int) -> None:
    with Raw(port, level) as sender, Raw(port, level) as reader:
        assert reader.connect("reader").reason == 0
        assert reader.subscribe(("a/+/c", granted)) == bytes((granted,))
        sender.connect("sender")
        sender.publish("a/b/c", b"hello", qos, 7 if qos else 0)
        done(sender, qos, 7)
        message = reader.message()
        assert (message.topic, message.payload) == (b"a/b/c", b"hello")
        assert message.flags >> 1 == min(qos, granted)
        if min(qos, granted) == 1:
            reader.answer(Packet.PUBACK, message.packet_id)
        elif min(qos, granted) == 2:
            reader.answer(Packet.PUBREC, message.packet_id)
            assert reader.expect(Packet.PUBREL).packet_id == message.packet_id
            reader.answer(Packet.PUBCOMP, message.packet_id)
        reader.send(b"\xc0\0")
        assert reader.read()[0] == 0xD0


def test_overlapping_filters_are_one_delivery_with_all_identifiers(port: int) -> None:
    with v5(port) as sender, v5(port) as reader:
        reader.connect("overlap")
        reader.subscribe(("o/#", 1), about={Property.SUBSCRIPTION_ID: [11]})
        reader.subscribe(("o/+", 2), about={Property.SUBSCRIPTION_ID: [22]})
        sender.connect("sender")
        sender.publish("o/x", b"once", 2, 1)
        done(sender, 2, 1)
        message = reader.message()
        assert message.flags >> 1 == 2
        assert set(properties_of(message)[Property.SUBSCRIPTION_ID]) == {11, 22}
        assert reader.is_quiet()


def test_no_local_keeps_a_client_s_own_messages_from_it(port: int) -> None:
    with v5(port) as client, v5(port) as other:
        client.connect("self")
        client.subscribe(("own", 1 | NO_LOCAL))
        other.connect("other")
        client.publish("own", b"mine", 1, 1)
        done(client, 1, 1)
        other.publish("own", b"other's", 1, 1)
        assert client.message().payload == b"other's"


def test_retained_messages_come_to_filters_with_wildcards(port: int) -> None:
    with v5(port) as sender, v5(port) as reader:
        sender.connect("sender")
        for number, topic in enumerate(["r/a", "r/b/c", "r/$x", "r"], 1):
            sender.publish(topic, topic.encode(), 1, number, retain=True)
            done(sender, 1, number)
        reader.connect("reader")
        reader.subscribe(("r/#", 1))
        found = reader.messages(4)
        assert {each.payload for each in found} == {b"r/a", b"r/b/c", b"r/$x", b"r"}
        assert all(each.flags & 1 for each in found)
        reader.subscribe(("r/+", 0))
        assert {each.payload for each in reader.messages(2)} == {b"r/a", b"r/$x"}
        reader.subscribe(("r/a", 0))
        assert reader.message().payload == b"r/a"
        sender.publish("r/a", b"", 1, 9, retain=True)
        done(sender, 1, 9)
        assert reader.message().payload == b""
        reader.subscribe(("r/a", 0))
        assert reader.is_quiet()
        for topic in ("r/b/c", "r/$x", "r"):
            sender.publish(topic, b"", 0, retain=True)


def test_retain_handling_and_retain_as_published(port: int) -> None:
    with v5(port) as sender, v5(port) as reader:
        sender.connect("sender")
        sender.publish("h/a", b"kept", 1, 1, retain=True)
        done(sender, 1, 1)
        reader.connect("reader")
        reader.subscribe(("h/a", NEVER))
        assert reader.is_quiet()
        reader.subscribe(("h/a", IF_NEW))
        assert reader.is_quiet()
        reader.subscribe(("h/+", IF_NEW | AS_PUBLISHED))
        assert reader.message().flags & 1
        sender.publish("h/a", b"live", 0, retain=True)
        assert reader.message().flags & 1
        reader.subscribe(("h/+", NEVER))
        sender.publish("h/a", b"live", 0, retain=True)
        assert not reader.message().flags & 1
        sender.publish("h/a", b"", 0, retain=True)


def test_filters_that_begin_with_a_wildcard_do_not_match_dollar_topics(port: int) -> None:
    with v5(port) as sender, v5(port) as all_, v5(port) as named:
        all_.connect("all")
        all_.subscribe(("#", 1), ("+/x", 1))
        named.connect("named")
        named.subscribe(("$own/#", 1))
        sender.connect("sender")
        sender.publish("$own/x", b"hidden", 1, 1)
        done(sender, 1, 1)
        assert named.message().payload == b"hidden"
        assert all_.is_quiet()


def test_sys_topics_tell_of_the_broker(port: int) -> None:
    with v5(port) as client:
        client.connect("sys")
        client.subscribe(("$SYS/broker/version", 0))
        assert b"OneLog" in client.message().payload
        client.publish("$SYS/broker/version", b"fake", 1, 1)
        assert client.expect(Packet.PUBACK).reason == Reason.NOT_AUTHORIZED


def test_all_properties_of_a_message_arrive(port: int) -> None:
    about: Properties = {
        Property.PAYLOAD_FORMAT: 1,
        Property.CONTENT_TYPE: "text/plain",
        Property.RESPONSE_TOPIC: "answers/7",
        Property.CORRELATION_DATA: b"\0\xff",
        Property.USER_PROPERTY: [("a", "1"), ("a", "2")],
    }
    with v5(port) as sender, v5(port) as reader:
        reader.connect("reader")
        reader.subscribe(("p", 0))
        sender.connect("sender")
        sender.publish("p", b"x", about=dict(about))
        assert properties_of(reader.message()) == about


def test_a_message_expires_while_it_is_retained(port: int) -> None:
    with v5(port) as sender, v5(port) as reader:
        sender.connect("sender")
        sender.publish("e/1", b"short", 1, 1, retain=True, about={Property.MESSAGE_EXPIRY: 1})
        sender.publish("e/2", b"long", 1, 2, retain=True, about={Property.MESSAGE_EXPIRY: 100})
        done(sender, 1, 1)
        done(sender, 1, 2)
        time.sleep(1.2)
        reader.connect("reader")
        reader.subscribe(("e/+", 0))
        message = reader.message()
        assert message.payload == b"long"
        assert properties_of(message)[Property.MESSAGE_EXPIRY] < 100
        assert reader.is_quiet()


def test_topic_aliases_either_way(port: int) -> None:
    with v5(port) as sender, v5(port) as reader:
        reader.connect("reader", properties={Property.TOPIC_ALIAS_MAXIMUM: 1})
        reader.subscribe(("alias/#", 1))
        answer = sender.connect("sender")
        assert answer.properties[Property.TOPIC_ALIAS_MAXIMUM] > 0
        sender.publish("alias/a", b"1", about={Property.TOPIC_ALIAS: 1})
        sender.publish("", b"2", about={Property.TOPIC_ALIAS: 1})
        sender.publish("alias/b", b"3")
        first, second, third = reader.messages(3)
        assert (first.topic, second.topic, third.topic) == (b"alias/a", b"", b"alias/b")
        assert properties_of(first) == properties_of(second) == {Property.TOPIC_ALIAS: 1}
        assert properties_of(third) == {}


def test_a_client_gets_no_more_than_it_has_answered_for(port: int) -> None:
    with v5(port) as sender, v5(port) as reader:
        reader.connect("reader", properties={Property.RECEIVE_MAXIMUM: 2})
        reader.subscribe(("w", 2))
        sender.connect("sender")
        for number in range(1, 6):
            sender.publish("w", b"%d" % number, 1, number)
            done(sender, 1, number)
        sender.publish("w", b"0")
        first = reader.messages(2)
        assert payloads(first) == [b"1", b"2"]
        assert reader.message().payload == b"0"
        assert reader.is_quiet()
        reader.answer(Packet.PUBACK, first[0].packet_id)
        assert reader.message().payload == b"3"
        assert reader.is_quiet()


def test_a_client_gets_no_larger_packets_than_it_takes(port: int) -> None:
    with v5(port) as sender, v5(port) as reader:
        reader.connect("reader", properties={Property.MAXIMUM_PACKET_SIZE: 50})
        reader.subscribe(("size", 1))
        sender.connect("sender")
        sender.publish("size", b"x" * 100, 1, 1)
        sender.publish("size", b"small", 1, 2)
        assert reader.message().payload == b"small"


def test_nobody_there_is_told_in_version_5(port: int) -> None:
    with v5(port) as sender:
        sender.connect("sender")
        sender.publish("nobody/there", b"x", 1, 1)
        assert sender.expect(Packet.PUBACK).reason == Reason.NO_MATCHING_SUBSCRIBERS


def test_unsubscribing_has_a_reason_for_each_filter(port: int) -> None:
    from onelog.wire.mqtt.packets import Unsubscribe, encode_unsubscribe

    with v5(port) as client:
        client.connect("leaving")
        client.subscribe(("l/a", 1), ("l/b", 0))
        client.send(encode_unsubscribe(V5, Unsubscribe(5, ["l/a", "l/c"], {})))
        found = client.expect(Packet.UNSUBACK)
        assert (found.packet_id, list(found.reasons)) == (5, [0, 0x11])
        client.publish("l/a", b"gone")
        client.publish("l/b", b"here")
        assert client.message().payload == b"here"


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_a_will_is_done_if_nobody_says_goodbye(port: int, says_goodbye: bool) -> None:
    will = Will("will/1", b"gone", 1, False, {Property.CONTENT_TYPE: "text"})
    with v5(port) as reader, v5(port) as client:
        reader.connect("reader")
        reader.subscribe(("will/1", 1))
        client.connect("mortal", will=will)
        if says_goodbye:
            client.send(b"\xe0\0")
            assert client.ends()
            assert reader.is_quiet()
        else:
            client.socket.close()
            message = reader.message()
            assert message.payload == b"gone"
            assert properties_of(message) == {Property.CONTENT_TYPE: "text"}


def test_a_goodbye_can_ask_for_the_will(port: int) -> None:
    with v5(port) as reader, v5(port) as client:
        reader.connect("reader")
        reader.subscribe(("will/2", 0))
        client.connect("mortal", will=Will("will/2", b"gone", 0, False, {}))
        client.send(b"\xe0\x01\x04")
        assert reader.message().payload == b"gone"


def test_a_delayed_will_is_void_when_the_client_is_back(port: int) -> None:
    will = Will("will/3", b"gone", 0, False, {Property.WILL_DELAY: 1})
    kept = {Property.SESSION_EXPIRY: 60}
    with v5(port) as reader:
        reader.connect("reader")
        reader.subscribe(("will/3", 0))
        with v5(port) as client:
            client.connect("delayed", will=will, properties=kept)
        with v5(port) as client:
            assert client.connect("delayed", clean=False, will=will, properties=kept).packet_id
            assert reader.is_quiet(1.5)
        assert reader.message().payload == b"gone"


def test_a_silent_client_is_cut_off_and_its_will_is_done(port: int) -> None:
    with v5(port) as reader, v5(port) as client:
        reader.connect("reader")
        reader.subscribe(("will/4", 0))
        client.connect("silent", keep_alive_s=1, will=Will("will/4", b"gone", 0, False, {}))
        assert reader.message().payload == b"gone"
        assert client.expect(Packet.DISCONNECT).reason == Reason.KEEP_ALIVE_TIMEOUT


def test_of_a_shared_filter_each_message_comes_to_one(port: int) -> None:
    with v5(port) as sender, v5(port) as one, v5(port) as two:
        for number, reader in enumerate((one, two)):
            reader.connect(f"sharing-{number}")
            reader.subscribe(("$share/g/s/#", 1))
        sender.connect("sender")
        for number in range(1, 21):
            sender.publish("s/x", b"%d" % number, 1, number)
            done(sender, 1, number)
        found: list[bytes] = []
        for reader in (one, two):
            while not reader.is_quiet(0.5):
                message = reader.message()
                reader.answer(Packet.PUBACK, message.packet_id)
                found.append(message.payload)
        assert sorted(found, key=int) == [b"%d" % number for number in range(1, 21)]


def test_what_a_member_leaves_unanswered_comes_to_another(port: int) -> None:
    with v5(port) as sender, v5(port) as two:
        with v5(port) as one:
            one.connect("leaver")
            one.subscribe(("$share/h/t", 1))
            sender.connect("sender")
            sender.publish("t", b"yours", 1, 1)
            done(sender, 1, 1)
            assert one.message().payload == b"yours"
            two.connect("stayer")
            two.subscribe(("$share/h/t", 1))
            assert two.is_quiet()
        assert two.message().payload == b"yours"
