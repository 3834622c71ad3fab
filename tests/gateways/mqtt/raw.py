"""An MQTT client that sends and reads single packets, for what no library lets one do."""

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from onelog.wire.mqtt import packets
from onelog.wire.mqtt.codes import V5, V311, Packet
from onelog.wire.mqtt.packets import (
    Acknowledgement,
    Connect,
    PacketReader,
    Publish,
    Subscribe,
    SubscribeFilter,
    Will,
)
from onelog.wire.mqtt.properties import Properties, property_list

SECONDS = 20


class Raw:
    """A connection."""

    def __init__(self, port: int, level: int = V311) -> None:
        self.level = level
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._reader = PacketReader(1 << 28)
        self._waiting: list[tuple[int, bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def connect(
        self,
        client_id: str,
        *,
        clean: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        **options: Any,
    ) -> Acknowledgement:
        """CONNECT, and its answer; `properties` is an option."""
        self.send(
            packets.encode_connect(
                Connect(self.level, client_id, clean, keep_alive_s, will, **options)
            )
        )
        head, body = self.read()
        assert head >> 4 == Packet.CONNACK
        return packets.read_connack(body, 0, len(body), self.level)

    def subscribe(
        self, *filters: tuple[str, int], packet_id: int = 1, about: Properties | None = None
    ) -> bytes:
        """SUBSCRIBE, and the reasons of its answer."""
        wanted = [SubscribeFilter(*each) for each in filters]
        self.send(packets.encode_subscribe(self.level, Subscribe(packet_id, wanted, about or {})))
        return self.expect(Packet.SUBACK).reasons

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        packet_id: int = 0,
        *,
        retain: bool = False,
        duplicate: bool = False,
        about: Properties | None = None,
    ) -> None:
        """PUBLISH, and no more."""
        flags = qos << 1 | retain | duplicate << 3
        publish = Publish(topic.encode(), flags, packet_id, property_list(about or {}), payload)
        self.send(packets.encode_publish(self.level, publish))

    def answer(self, kind: Packet, packet_id: int, reason: int = 0) -> None:
        """PUBACK, PUBREC, PUBREL or PUBCOMP."""
        self.send(packets.encode_answer(kind, self.level, packet_id, reason))

    def read(self, seconds: float = SECONDS) -> tuple[int, bytes]:
        """The first byte and the rest of the next packet; `ConnectionError` at the end."""
        self.socket.settimeout(seconds)
        while not self._waiting:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError("the broker has closed the connection")
            self._reader.feed(data)
            for head, at, end in self._reader.spans():
                self._waiting.append((head, bytes(self._reader.data[at:end])))
        return self._waiting.pop(0)

    def expect(self, kind: Packet) -> Acknowledgement:
        """The next packet, which is this one."""
        head, body = self.read()
        assert head >> 4 == kind, (Packet(head >> 4), body)
        if kind in (Packet.SUBACK, Packet.UNSUBACK):
            return packets.read_reasons(body, head, 0, len(body), self.level)
        if kind == Packet.DISCONNECT:
            reason, about = packets.read_ending(body, head, 0, len(body), self.level)
            return Acknowledgement(0, reason, about)
        return packets.read_answer(body, head, 0, len(body), self.level)

    def message(self, seconds: float = SECONDS) -> Publish:
        """The next packet, which is a PUBLISH."""
        head, body = self.read(seconds)
        assert head >> 4 == Packet.PUBLISH, (Packet(head >> 4), body)
        return packets.read_publish(body, head, 0, len(body), self.level)

    def messages(self, count: int) -> list[Publish]:
        """The next packets, all of them PUBLISH."""
        return [self.message() for _ in range(count)]

    def is_quiet(self, seconds: float = 0.3) -> bool:
        """Whether nothing comes."""
        try:
            self._waiting.insert(0, self.read(seconds))
        except TimeoutError:
            return True
        return False

    def ends(self) -> bool:
        """Whether the broker closes the connection, whatever it says before."""
        try:
            while True:
                self.read()
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def properties_of(message: Publish) -> Properties:
    """What the properties of a message say."""
    return packets.read_publish_properties(message.properties)


def v5(port: int) -> Raw:
    """A connection of version 5."""
    return Raw(port, V5)


def payloads(messages: Sequence[Publish]) -> list[bytes]:
    """What is in them."""
    return [each.payload for each in messages]
