"""Messages on their way to clients, and their bytes: encoded once for all who get the same.

A message goes to many clients in one go. `PublishEncoder` keeps the last one, known by its very
bytes, and a `EncodedPublish` keeps its encodings: what differs from client to client is the packet
id, between two halves that are the same for all.
"""

from onelog.core.routing.names import swapped
from onelog.record.forms import Form, amqp, mqtt
from onelog.record.forms.amqp_fields import property_of
from onelog.record.forms.mqtt import Content
from onelog.wire.mqtt.codes import V5
from onelog.wire.mqtt.fields import encode_varint

Halves = tuple[bytes, bytes]
"""What is before and what is behind the packet id."""

_PERSISTENT = 2
_EXPIRY_BYTES = 5
_MQTT_FORM = Form.MQTT.sys_flag


class EncodedPublish:
    """A message, and its encodings."""

    __slots__ = (
        "_halves _plain expires_ms flags is_plain payload properties publisher qos topic".split()
    )

    def __init__(self, content: Content) -> None:
        flags, time_ms, self.publisher, self.topic, self.properties, self.payload = content
        self.flags = flags
        self.qos = flags >> 1 & 3
        expiry_s = mqtt.expiry_s(self.properties) if self.properties else None
        self.expires_ms = None if expiry_s is None else time_ms + expiry_s * 1_000
        self.is_plain = expiry_s is None and not flags & mqtt.REPLAYED
        """Whether it looks the same to all who have the same QoS and no wishes of their own."""
        self._plain: dict[int, Halves] = {}
        self._halves: dict[tuple[int, int, tuple[int, ...]], Halves] = {}

    def plain(self, level: int, qos: int) -> Halves:
        """The PUBLISH for all of these."""
        halves = self._plain.get(level << 2 | qos)
        if halves is None:
            halves = self._encoded(level, qos << 1, (), self.topic, 0, 0)
            self._plain[level << 2 | qos] = halves
        return halves

    def halves(self, level: int, flags: int, ids: tuple[int, ...], now_ms: int) -> Halves:
        """The PUBLISH with these flags, for who has these subscription identifiers."""
        if self.expires_ms is not None and level == V5:
            return self._encoded(level, flags, ids, self.topic, 0, now_ms)
        key = (level, flags, ids)
        halves = self._halves.get(key)
        if halves is None:
            halves = self._halves[key] = self._encoded(level, flags, ids, self.topic, 0, now_ms)
        return halves

    def aliased(
        self, flags: int, ids: tuple[int, ...], alias: int, is_new: bool, now_ms: int
    ) -> Halves:
        """The same with an alias for its topic, which the client knows already, or not."""
        return self._encoded(V5, flags, ids, self.topic if is_new else b"", alias, now_ms)

    def _encoded(
        self, level: int, flags: int, ids: tuple[int, ...], topic: bytes, alias: int, now_ms: int
    ) -> Halves:
        about = b""
        if level == V5:
            content = self._properties(now_ms)
            for each in ids:
                content += b"\x0b" + encode_varint(each)
            if alias:
                content += b"\x23" + alias.to_bytes(2, "big")
            about = encode_varint(len(content)) + content
        size = 2 + len(topic) + len(about) + len(self.payload) + (2 if flags & 6 else 0)
        head = b"".join(
            (bytes((0x30 | flags,)), encode_varint(size), len(topic).to_bytes(2, "big"), topic)
        )
        tail = about + self.payload
        return (head, tail) if flags & 6 else (head + tail, b"")

    def _properties(self, now_ms: int) -> bytes:
        """With how long it has left, in the place of how long it had."""
        if self.expires_ms is None:
            return self.properties
        left_s = max(0, -(-(self.expires_ms - now_ms) // 1_000))
        begin = mqtt.expiry_at(self.properties)
        rest = self.properties[begin + _EXPIRY_BYTES :]
        return self.properties[: begin + 1] + left_s.to_bytes(4, "big") + rest


class PublishEncoder:
    """Makes letters of record bodies; the last one is kept, for others who get it."""

    def __init__(self) -> None:
        self.body: bytes | memoryview = b""
        self.last = NO_PUBLISH
        """What the last body was made into."""
        self.made: tuple[bytes, Content] = (b"", _NOTHING)
        """A body, and the content that it was made of: nobody has to read it again."""

    def of(self, body: bytes | memoryview, form: int) -> EncodedPublish:
        """The letter with a record's body of this form."""
        if body is self.body:
            return self.last
        if body is self.made[0]:
            publish = EncodedPublish(self.made[1])
        else:
            in_form = body if form in (_MQTT_FORM, Form.MQTT) else _converted(body)
            publish = EncodedPublish(mqtt.read(in_form))
        self.body, self.last = body, publish
        return publish


_NOTHING = Content(0, 0, b"", b"", b"", b"")
NO_PUBLISH = EncodedPublish(_NOTHING)
"""Where there is none yet."""


def _converted(body: bytes | memoryview) -> bytes:
    """A message of AMQP's form in MQTT's: the key is the topic, and persistent ones have QoS 1."""
    content = amqp.read(body)
    neutral = amqp.to_neutral(body, 0)
    is_persistent = property_of(content.properties, "delivery_mode") == _PERSISTENT
    named = [each for each in neutral.headers if each[0] != "mqtt.topic"]
    topic = swapped(content.key).encode()
    headers = (("mqtt.topic", topic), *named)
    return mqtt.from_neutral(neutral._replace(headers=headers), 2 if is_persistent else 0)
