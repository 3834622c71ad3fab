"""QoS 2, with a broker that is killed between any two packets: exactly once, either way.

The model is what the specification asks of the other side. A sender keeps a message until PUBREC,
then its packet id until PUBCOMP, and after each break it sends the one or the other again. A
receiver keeps a packet id from PUBLISH to PUBREL, and takes a PUBLISH with an id that it keeps for
a message that it has. Of those who share a filter, one gets each message, exactly once.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.wire.mqtt.codes import V5, Packet
from onelog.wire.mqtt.packets import Publish, read_answer, read_publish
from onelog.wire.mqtt.properties import Property
from tests.e2e.onelog_mqtt import OnelogMqtt
from tests.gateways.mqtt.raw import Raw

KEPT = {Property.SESSION_EXPIRY: 1_000_000}
TOPIC = "exactly/once"


class Sender:
    """The client's side of messages that it sends: one at a time."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._publish: tuple[int, bytes] | None = None
        self._release: int | None = None
        self._next_id = 1

    @property
    def is_idle(self) -> bool:
        return self._publish is None and self._release is None

    def new(self, client: Raw, content: bytes) -> None:
        """PUBLISH."""
        self._publish = self._next_id, content
        self._next_id = self._next_id % 5 + 1  # Ids come again soon.
        self.sent.append(content)
        client.publish(TOPIC, content, 2, self._publish[0])

    def again(self, client: Raw) -> None:
        """What is sent after a break."""
        if self._publish is not None:
            client.publish(TOPIC, self._publish[1], 2, self._publish[0], duplicate=True)
        if self._release is not None:
            client.answer(Packet.PUBREL, self._release)

    def got(self, client: Raw, head: int, body: bytes) -> None:
        """PUBREC or PUBCOMP."""
        packet_id = read_answer(body, head, 0, len(body), V5).packet_id
        if head >> 4 == Packet.PUBREC:
            if self._publish is not None:
                assert packet_id == self._publish[0]
                self._publish, self._release = None, packet_id
            client.answer(Packet.PUBREL, packet_id)
        else:
            assert packet_id == self._release
            self._release = None


class Receiver:
    """The client's side of messages that it gets."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self._ids: set[int] = set()

    def got(self, client: Raw, head: int, body: bytes) -> None:
        """PUBLISH or PUBREL."""
        if head >> 4 == Packet.PUBLISH:
            message: Publish = read_publish(body, head, 0, len(body), V5)
            if message.packet_id not in self._ids:
                self._ids.add(message.packet_id)
                self.received.append(message.payload)
            client.answer(Packet.PUBREC, message.packet_id)
        else:
            packet_id = read_answer(body, head, 0, len(body), V5).packet_id
            self._ids.discard(packet_id)
            client.answer(Packet.PUBCOMP, packet_id)

    @property
    def is_idle(self) -> bool:
        return not self._ids


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnelogMqtt]:
    folder: Path = tmp_path_factory.mktemp("exactly")
    with OnelogMqtt(folder, {"store.segment_bytes": 1 << 20}) as started:
        yield started


class Exchange:
    """Clients with sessions that are kept, and a broker that can be killed at any time.

    Several receivers share a filter.
    """

    def __init__(self, broker: OnelogMqtt, name: str, receivers: int = 1) -> None:
        self.broker, self.name = broker, name
        self.sender, self.receivers = Sender(), [Receiver() for _ in range(receivers)]
        self._connect(clean=True)
        for each in self.ins:
            each.subscribe((TOPIC if receivers == 1 else f"$share/{name}/{TOPIC}", 2))

    def _connect(self, *, clean: bool = False) -> None:
        self.out = Raw(self.broker.port, V5)
        self.out.connect(f"{self.name}-out", clean=clean, properties=KEPT)
        self.ins = [Raw(self.broker.port, V5) for _ in self.receivers]
        for number, each in enumerate(self.ins):
            each.connect(f"{self.name}-in-{number}", clean=clean, properties=KEPT)

    def kill(self) -> None:
        """The broker is killed, and starts again; all clients are back."""
        self.broker.kill()
        self.close()
        self.broker.start()
        self.broker.wait_until_ready()
        self._connect()
        self.sender.again(self.out)

    def close(self) -> None:
        for each in (self.out, *self.ins):
            each.socket.close()

    def step_in(self, number: int, seconds: float) -> bool:
        """Handle one packet of a receiver."""
        number %= len(self.ins)
        return self.step(self.ins[number], self.receivers[number], seconds)

    def step(self, client: Raw, side: Sender | Receiver, seconds: float) -> bool:
        """Handle one packet, if one comes."""
        try:
            head, body = client.read(seconds)
        except TimeoutError:
            return False
        side.got(client, head, body)
        return True

    def finish(self) -> None:
        """Everything comes to its end."""
        while not self.sender.is_idle:
            assert self.step(self.out, self.sender, 20)
        ends = time.monotonic() + 30
        count, seconds = len(self.ins), 20 if len(self.ins) == 1 else 0.05
        while len(self.received) < len(self.sender.sent) or not self.is_idle:
            assert any(self.step_in(number, seconds) for number in range(count)) or (
                time.monotonic() < ends and count > 1
            ), self.received
        while any(self.step_in(number, 0.3) for number in range(count)):
            pass  # The end of an exchange may have to be said again, and nothing else.
        if count == 1:
            assert self.received == self.sender.sent
        assert sorted(self.received) == sorted(self.sender.sent)

    @property
    def received(self) -> list[bytes]:
        """What all of them got."""
        return [content for each in self.receivers for content in each.received]

    @property
    def is_idle(self) -> bool:
        """Whether no receiver keeps an id."""
        return all(each.is_idle for each in self.receivers)


@pytest.mark.parametrize("sender_steps", [0, 1, 2])
def test_a_kill_between_the_packets_of_a_sender(broker: OnelogMqtt, sender_steps: int) -> None:
    exchange = Exchange(broker, f"send-{sender_steps}")
    for content in (b"one", b"two"):
        exchange.sender.new(exchange.out, content)
        for _ in range(sender_steps):
            assert exchange.step(exchange.out, exchange.sender, 20)
        exchange.kill()
        while not exchange.sender.is_idle:
            assert exchange.step(exchange.out, exchange.sender, 20)
    exchange.finish()
    exchange.close()


@pytest.mark.parametrize("receiver_steps", [0, 1, 2])
def test_a_kill_between_the_packets_of_a_receiver(broker: OnelogMqtt, receiver_steps: int) -> None:
    exchange = Exchange(broker, f"receive-{receiver_steps}")
    for content in (b"one", b"two"):
        exchange.sender.new(exchange.out, content)
        while not exchange.sender.is_idle:
            assert exchange.step(exchange.out, exchange.sender, 20)
        for _ in range(receiver_steps):
            assert exchange.step_in(0, 20)
        exchange.kill()
    exchange.finish()
    exchange.close()


@pytest.mark.parametrize("receiver_steps", [0, 1, 2])
def test_a_kill_between_the_packets_of_those_who_share_a_filter(
    broker: OnelogMqtt, receiver_steps: int
) -> None:
    exchange = Exchange(broker, f"share-{receiver_steps}", receivers=2)
    for content in (b"one", b"two", b"three"):
        exchange.sender.new(exchange.out, content)
        while not exchange.sender.is_idle:
            assert exchange.step(exchange.out, exchange.sender, 20)
        for _ in range(receiver_steps):
            for number in range(2):
                exchange.step_in(number, 0.2)
    exchange.kill()
    exchange.finish()
    exchange.close()


def test_a_message_of_a_shared_filter_is_its_client_s_also_if_the_others_come_first(
    broker: OnelogMqtt,
) -> None:
    exchange = Exchange(broker, "first", receivers=2)
    exchange.sender.new(exchange.out, b"one")
    while not exchange.sender.is_idle:
        assert exchange.step(exchange.out, exchange.sender, 20)
    for number in range(2):
        exchange.step_in(number, 0.2)
    assert exchange.received == [b"one"]
    (mine,) = (at for at, each in enumerate(exchange.receivers) if each.received)
    exchange.broker.kill()
    exchange.close()
    exchange.broker.start()
    exchange.broker.wait_until_ready()
    with Raw(broker.port, V5) as other, Raw(broker.port, V5) as own:
        other.connect(f"first-in-{1 - mine}", clean=False, properties=KEPT)
        assert other.is_quiet()
        own.connect(f"first-in-{mine}", clean=False, properties=KEPT)
        head, body = own.read()
        assert head >> 4 in (Packet.PUBREL, Packet.PUBLISH)
        exchange.receivers[mine].got(own, head, body)
        assert exchange.received == [b"one"]


def test_ids_of_shared_messages_are_not_those_of_messages_that_wait(broker: OnelogMqtt) -> None:
    with Raw(broker.port, V5) as client, Raw(broker.port, V5) as sender:
        client.connect("both", properties=KEPT)
        client.subscribe(("both/own", 2), ("$share/both/both/shared", 2))
        sender.connect("both-sender")
        sender.publish("both/own", b"own", 2, 1)
        sender.expect(Packet.PUBREC)
        message = client.message()  # And nothing is answered.
    broker.kill()
    broker.start()
    broker.wait_until_ready()
    with Raw(broker.port, V5) as client, Raw(broker.port, V5) as sender:
        sender.connect("both-sender")
        sender.publish("both/shared", b"shared", 2, 2)
        sender.expect(Packet.PUBREC)
        client.connect("both", clean=False, properties=KEPT)
        found = client.messages(2)
        assert {each.payload for each in found} == {b"own", b"shared"}
        assert len({each.packet_id for each in found}) == 2
        (again,) = (each for each in found if each.payload == b"own")
        assert again.packet_id == message.packet_id


_STEPS = st.lists(
    st.sampled_from(["send", "out", "in 0", "in 1", "in 0", "in 1", "out", "kill"]), max_size=25
)


@settings(max_examples=6, deadline=None)
@given(steps=_STEPS, number=st.integers(0, 1 << 40), receivers=st.integers(1, 2))
def test_any_order_of_packets_and_kills(
    broker: OnelogMqtt, steps: list[str], number: int, receivers: int
) -> None:
    exchange = Exchange(broker, f"any-{number}", receivers)
    for step in steps:
        if step == "kill":
            exchange.kill()
        elif step == "out":
            exchange.step(exchange.out, exchange.sender, 0.05)
        elif step != "send":
            exchange.step_in(int(step[-1]), 0.05)
        elif exchange.sender.is_idle:
            exchange.sender.new(exchange.out, b"%d" % len(exchange.sender.sent))
    exchange.finish()
    exchange.close()
