"""QoS 2, with a broker that is killed between any two packets: exactly once, either way.

The model is what the specification asks of the other side. A sender keeps a message until PUBREC,
then its packet id until PUBCOMP, and after each break it sends the one or the other again. A
receiver keeps a packet id from PUBLISH to PUBREL, and takes a PUBLISH with an id that it keeps for
a message that it has.
"""

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
    """Two clients with sessions that are kept, and a broker that can be killed at any time."""

    def __init__(self, broker: OnelogMqtt, name: str) -> None:
        self.broker, self.name = broker, name
        self.sender, self.receiver = Sender(), Receiver()
        self._connect(clean=True)
        self.in_.subscribe((TOPIC, 2))

    def _connect(self, *, clean: bool = False) -> None:
        self.out, self.in_ = Raw(self.broker.port, V5), Raw(self.broker.port, V5)
        self.out.connect(f"{self.name}-out", clean=clean, properties=KEPT)
        self.in_.connect(f"{self.name}-in", clean=clean, properties=KEPT)

    def kill(self) -> None:
        """The broker is killed, and starts again; both clients are back."""
        self.broker.kill()
        self.close()
        self.broker.start()
        self.broker.wait_until_ready()
        self._connect()
        self.sender.again(self.out)

    def close(self) -> None:
        self.out.socket.close()
        self.in_.socket.close()

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
        while len(self.receiver.received) < len(self.sender.sent) or not self.receiver.is_idle:
            assert self.step(self.in_, self.receiver, 20), self.receiver.received
        assert not self.step(self.in_, self.receiver, 0.3)
        assert self.receiver.received == self.sender.sent


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
            assert exchange.step(exchange.in_, exchange.receiver, 20)
        exchange.kill()
    exchange.finish()
    exchange.close()


_STEPS = st.lists(st.sampled_from(["send", "out", "in", "in", "out", "kill"]), max_size=25)


@settings(max_examples=5, deadline=None)
@given(steps=_STEPS, number=st.integers(0, 1 << 40))
def test_any_order_of_packets_and_kills(broker: OnelogMqtt, steps: list[str], number: int) -> None:
    exchange = Exchange(broker, f"any-{number}")
    for step in steps:
        if step == "kill":
            exchange.kill()
        elif step == "out":
            exchange.step(exchange.out, exchange.sender, 0.05)
        elif step == "in":
            exchange.step(exchange.in_, exchange.receiver, 0.05)
        elif exchange.sender.is_idle:
            exchange.sender.new(exchange.out, b"%d" % len(exchange.sender.sent))
    exchange.finish()
    exchange.close()
