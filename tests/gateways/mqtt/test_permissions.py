"""Users may publish and subscribe where they were permitted to: topics, filters, wills."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from onelog.core.access import SELF, Resource
from onelog.core.users.passwords import prove
from onelog.core.users.permissions import Effect, Match, Rule, decide
from onelog.errors import InvalidRequestError
from onelog.gateways.mqtt.filters import read_filter
from onelog.server import BrokerServer
from onelog.wire.mqtt.codes import V5, V311, Packet, Reason
from onelog.wire.mqtt.packets import Will
from onelog.wire.mqtt.properties import Property
from tests.gateways.mqtt.raw import SECONDS, Raw
from tests.gateways.remoting.live import broker

LEVELS = ("a", "b", "z", "$s")
TOPICS = ["/".join(each) for count in (1, 2, 3) for each in itertools.product(LEVELS, repeat=count)]
FILTERS = [
    text
    for count in (1, 2, 3)
    for each in itertools.product(("a", "b", "+", "#", "$s"), repeat=count)
    if "#" not in (text := "/".join(each))[:-1]
]
NAMES: list[tuple[str, Match]] = [
    *((each, "literal") for each in FILTERS),
    ("*", "literal"),
    ("*", "pattern"),
    ("a/", "prefix"),
    ("a", "prefix"),
    ("a/b", "prefix"),
    ("*/b", "pattern"),
    ("a/*/b", "pattern"),
    ("$", "prefix"),
    ("a/*", "pattern"),
    ("+/b", "pattern"),
]


def rule(name: str, match: Match, effect: Effect = "allow") -> Rule:
    return Rule(("consume",), "mqtt", name, match, effect)


def test_a_filter_is_permitted_if_one_rule_allows_all_of_it_and_none_denies_any() -> None:
    """Of all short filters and rules, compared with each topic that they match."""
    everything = rule("*", "pattern")
    matched = {
        text: [each for each in TOPICS if read_filter(text).matches(each.split("/"))]
        for text in FILTERS
    }
    for name, match in NAMES:
        allows, denies = rule(name, match), rule(name, match, "deny")
        named = {each for each in TOPICS if decide([allows], "consume", ("mqtt", each), "")}
        for text, topics in matched.items():
            wanted: Resource = ("mqtt", text)
            may = decide([allows], "consume", wanted, "")
            is_denied = not decide([everything, denies], "consume", wanted, "")
            assert not may or named.issuperset(topics), (name, match, text)
            assert is_denied or named.isdisjoint(topics), (name, match, text)
            if match == "literal" and name != "*" and "#" not in text:
                assert may == named.issuperset(topics), (name, text)
                assert is_denied != named.isdisjoint(topics), (name, text)


@pytest.mark.parametrize("wrong", ["a/b+", "#/a", "a/#/b", "+*", "a/*/+", "*/#"])
def test_what_is_neither_a_filter_nor_has_stars_alone_is_no_name(wrong: str) -> None:
    with pytest.raises(InvalidRequestError, match="whole level"):
        rule(wrong, "pattern" if "*" in wrong else "literal")


def test_long_topics_are_decided_at_once() -> None:
    many = [rule("*".join("abcdefghij") + f"*{number}", "pattern") for number in range(20)]
    assert not decide(many, "consume", ("mqtt", "abcdefghi" * 7_000), "")


# -- clients ---------------------------------------------------------------------------------------


def permit(server: BrokerServer, *rules: Rule) -> None:
    server.broker.users.set_rules(SELF, "lamp", rules)


async def with_lamp(tmp_path: Path, use: Callable[[BrokerServer], None], *rules: Rule) -> None:
    async with broker(tmp_path, mqtt__port=-1) as server:
        server.broker.users.create_user(SELF, "ann", prove("secret"), ("admin",))
        server.broker.users.create_user(SELF, "lamp", prove("l"))
        permit(server, *rules)
        await asyncio.to_thread(use, server)


OWN = Rule(("publish", "consume"), "mqtt", "lamps/7/", "prefix")
SOME = Rule(("consume",), "mqtt", "rooms/+/light", "literal")
LAMP: dict[str, Any] = {"user": "lamp", "password": b"l"}
NO = Reason.NOT_AUTHORIZED


class Paho:
    """A client of paho, and the reasons that it was told."""

    def __init__(self, server: BrokerServer, protocol: MQTTProtocolVersion) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, "lamp-7", protocol=protocol)
        self.client.username_pw_set("lamp", "l")
        self.told: Queue[Any] = Queue()
        put = self.told.put
        self.client.on_connect = lambda *given: put(given[3])
        self.client.on_subscribe = lambda *given: put([each.value for each in given[3]])
        self.client.on_publish = lambda *given: put(given[3].value)
        self.client.on_disconnect = lambda *given: put("disconnected")
        self.client.on_message = lambda *given: put((given[2].topic, given[2].payload))
        self.client.connect("127.0.0.1", server.config.mqtt.port)
        self.client.loop_start()
        assert not self.hear().is_failure

    def hear(self) -> Any:
        """What comes next."""
        return self.told.get(timeout=SECONDS)

    def close(self) -> None:
        """Goodbye."""
        self.client.disconnect()
        self.client.loop_stop()


def paho_5(server: BrokerServer) -> None:
    lamp = Paho(server, MQTTProtocolVersion.MQTTv5)
    filters = ["lamps/7/#", "lamps/7/+/x", "rooms/1/light", "$share/g/rooms/+/light"]
    lamp.client.subscribe([(each, 1) for each in filters])
    assert lamp.hear() == [1] * 4
    beyond = ["lamps/#", "lamps/+/x", "#", "+/+/light", "rooms/#", "$share/g/rooms/#", "$SYS/#"]
    lamp.client.subscribe([(each, 1) for each in beyond])
    assert lamp.hear() == [NO] * len(beyond)
    for topic, reason in (("lamps/8/on", NO), ("rooms/1/light", NO)):
        lamp.client.publish(topic, b"x", 1, retain=True)
        assert lamp.hear() == reason
    lamp.client.publish("lamps/8/on", b"not told", 0)
    assert lamp.hear() == 0  # Of paho itself: it was sent.
    lamp.client.publish("lamps/7/on", b"mine", 1)
    assert sorted([str(lamp.hear()), str(lamp.hear())]) == ["('lamps/7/on', b'mine')", "0"]
    lamp.close()
    assert lamp.hear() == "disconnected"
    assert list(server.broker.topics.retained.matching(["#"])) == []


async def test_a_client_of_version_5_is_told_what_it_may_not(tmp_path: Path) -> None:
    await with_lamp(tmp_path, paho_5, OWN, SOME)


def paho_3(server: BrokerServer) -> None:
    lamp = Paho(server, MQTTProtocolVersion.MQTTv311)
    lamp.client.subscribe([("lamps/7/#", 1), ("lamps/#", 1)])
    assert lamp.hear() == [1, 0x80]
    lamp.client.publish("lamps/8/on", b"x", 1)
    assert lamp.hear() == "disconnected"  # There is no other way to say no.
    lamp.close()


async def test_a_client_of_version_3_is_told_as_far_as_there_are_words(tmp_path: Path) -> None:
    await with_lamp(tmp_path, paho_3, OWN, SOME)


def wills(server: BrokerServer) -> None:
    port = server.config.mqtt.port
    for topic, level, reason in (
        ("lamps/8/gone", V5, NO),
        ("lamps/8/gone", V311, 5),
        ("$SYS/broker/version", V5, NO),
        ("lamps/7/gone", V5, 0),
    ):
        with Raw(port, level) as client:
            assert (
                client.connect("l", will=Will(topic, b"x", 1, False, {}), **LAMP).reason == reason
            )


async def test_a_will_is_for_topics_that_are_permitted(tmp_path: Path) -> None:
    await with_lamp(tmp_path, wills, OWN)


def revoked(server: BrokerServer) -> None:
    port, call = server.config.mqtt.port, server._loop.call_soon_threadsafe
    week: dict[str, Any] = {"properties": {Property.SESSION_EXPIRY: 600_000}, "clean": False}
    with Raw(port, V5) as lamp, Raw(port, V5) as ann:
        ann.connect("ann", user="ann", password=b"secret")
        will = Will("lamps/7/gone", b"x", 1, True, {})
        assert lamp.connect("lamp", will=will, **LAMP, **week).reason == 0
        assert lamp.subscribe(("rooms/1/light", 1), ("lamps/7/#", 1)) == b"\1\1"
        lamp.publish("lamps/7/on", b"x", 1, 1)
        assert {lamp.read()[0] >> 4 for _ in range(2)} == {Packet.PUBLISH, Packet.PUBACK}
        lamp.answer(Packet.PUBACK, 1)
        call(permit, server, SOME)
        assert lamp.expect(Packet.DISCONNECT).reason == NO
        ann.publish("lamps/7/on", b"not for it any more", 1, 1)
        ann.expect(Packet.PUBACK)
        with Raw(port, V5) as again:
            assert again.connect("lamp", **LAMP, **week).reason == 0
            assert again.subscribe(("lamps/7/#", 1)) == bytes((NO,))
            again.publish("lamps/7/on", b"x", 1, 1)
            assert again.expect(Packet.PUBACK).reason == NO
            ann.publish("rooms/1/light", b"on", 1, 2)
            assert again.message().topic == b"rooms/1/light"  # It is still subscribed to.
    assert list(server.broker.topics.retained.matching(["#"])) == []


async def test_what_is_revoked_ends_also_in_sessions_that_are_kept(tmp_path: Path) -> None:
    await with_lamp(tmp_path, revoked, OWN, SOME)
