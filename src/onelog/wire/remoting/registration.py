"""A broker's registration at a name server: its topics, and the version of its list of them.

The body is JSON, or, with the field `compressed`, a zlib stream of

    int32 length | data version, JSON
    int32 count  | count x { int32 length | "name readQueues writeQueues perm filterType {...}" }
    int32 length | filter servers, JSON
    int32 count  | count x { int32 length | mapping of a static topic, JSON }    from 5.0 on

Invariant: both forms carry the same topics, except that the compressed one has no `order` and no
`topicSysFlag`.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import field

from onelog.errors import WireError
from onelog.message import Buffer
from onelog.wire.remoting import fastjson
from onelog.wire.remoting.body import Body, Name
from onelog.wire.remoting.codes import (
    VERSION,
    VERSION_WITH_BROKER_BODY,
    VERSION_WITH_QUEUE_MAPPINGS,
)
from onelog.wire.remoting.fields import NAME_CHARS_MAX

INFLATED_BYTES_MAX = 32 << 20
"""What a compressed registration may grow to; that is room for half a million topics."""
TOPICS_MAX = 200_000
"""Topics of one broker; RocketMQ's own are in trouble long before."""
PIECES_MAX = 100_000
"""Keys and values in it that are not plain JSON; static topics are written so."""

_decode_attributes = msgspec.json.Decoder(dict[str, str | int | float | bool | None]).decode


class DataVersion(Body, frozen=True):
    """The version of a broker's tables; two that are equal stand for the same tables."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class TopicConfig(Body, frozen=True):
    """A topic as one broker has it. `perm`: 4 read, 2 write, 1 inherited by topics made from it."""

    attributes: dict[Name, Name] = field(default_factory=dict)
    order: bool = False
    perm: int = 6
    read_queue_nums: int = 16
    topic_filter_type: Name = "SINGLE_TAG"
    topic_name: Name = ""
    topic_sys_flag: int = 0
    write_queue_nums: int = 16

    def to_line(self) -> str:
        """The form it has in a compressed registration."""
        attributes = fastjson.dumps(self.attributes).decode()
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} "
            f"{self.topic_filter_type} {attributes}"
        )

    @classmethod
    def from_line(cls, line: str, allowance: fastjson.Allowance | None = None) -> "TopicConfig":
        """The inverse of `to_line`; `WireError` if the line is not of that form."""
        parts = line.split(" ", 5)
        if len(parts) < 5 or len(parts[0]) > NAME_CHARS_MAX:
            raise WireError(f"no topic: {line[:80]!r}")
        try:
            read, write, perm = int(parts[1]), int(parts[2]), int(parts[3])
        except ValueError:
            raise WireError(f"a topic without numbers of queues: {line[:80]!r}") from None
        return cls(
            topic_name=parts[0],
            read_queue_nums=read,
            write_queue_nums=write,
            perm=perm,
            topic_filter_type=parts[4],
            attributes=_attributes(parts[5], allowance) if len(parts) > 5 else {},
        )


class TopicTable(Body, frozen=True):
    """A broker's topics (RocketMQ: TopicConfigSerializeWrapper and its subclass)."""

    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion | None = None
    topic_config_table: dict[Name, TopicConfig] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[Name, Any] | None = None
    topic_queue_mapping_info_map: dict[Name, Any] | None = None


class RegisterBrokerBody(Body, frozen=True):
    """What a broker registers."""

    filter_server_list: list[Name] = field(default_factory=list)
    topic_config_serialize_wrapper: TopicTable = TopicTable()


class TopicConfigList(Body, frozen=True):
    """The body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


def encode_registration(
    body: RegisterBrokerBody, compressed: bool = False, version: int = VERSION
) -> bytes:
    """The body of REGISTER_BROKER."""
    if not compressed:
        return body.encode()
    table = body.topic_config_serialize_wrapper
    pieces = [_sized(table.data_version.encode())]
    pieces.append(_int32(len(table.topic_config_table)))
    pieces += [_sized(topic.to_line().encode()) for topic in table.topic_config_table.values()]
    pieces.append(_sized(fastjson.dumps(body.filter_server_list)))
    if version >= VERSION_WITH_QUEUE_MAPPINGS:
        mappings = table.topic_queue_mapping_info_map or {}
        pieces.append(_int32(len(mappings)))
        pieces += [_sized(fastjson.dumps(mapping)) for mapping in mappings.values()]
    return zlib.compress(b"".join(pieces), 9)


def decode_registration(
    body: Buffer, compressed: bool = False, version: int = VERSION
) -> RegisterBrokerBody:
    """What the body of REGISTER_BROKER says, sent by a broker of that version."""
    if not len(body):
        return RegisterBrokerBody()
    allowance = fastjson.Allowance(PIECES_MAX)
    if version < VERSION_WITH_BROKER_BODY:
        table = TopicTable.decode(body, allowance)
        decoded = RegisterBrokerBody(topic_config_serialize_wrapper=table)
    elif not compressed:
        decoded = RegisterBrokerBody.decode(body, allowance)
    else:
        return _Inflated(body, allowance).registration(version)
    _check_count(len(decoded.topic_config_serialize_wrapper.topic_config_table))
    return decoded


def _check_count(topics: int) -> None:
    if topics > TOPICS_MAX:
        raise WireError(f"a registration of {topics} topics; the limit is {TOPICS_MAX}")


class _Inflated:
    """The pieces of a compressed registration, from front to back."""

    def __init__(self, body: Buffer, allowance: fastjson.Allowance) -> None:
        inflater = zlib.decompressobj()
        try:
            self._data = inflater.decompress(body, INFLATED_BYTES_MAX)
        except zlib.error as error:
            raise WireError(f"a registration that is not compressed: {error}") from None
        if not inflater.eof:
            raise WireError("a compressed registration is cut off, or too large")
        self._at = 0
        self._allowance = allowance

    def registration(self, version: int) -> RegisterBrokerBody:
        data_version = DataVersion.decode(self._piece())
        topics = {}
        count = self._number()
        _check_count(count)
        for _ in range(count):
            topic = TopicConfig.from_line(self._text(), self._allowance)
            topics[topic.topic_name] = topic
        servers = fastjson.loads(self._text(), None, self._allowance)
        mappings = {}
        if version >= VERSION_WITH_QUEUE_MAPPINGS:
            for _ in range(self._number()):
                mapping = fastjson.loads(self._text(), None, self._allowance)
                if not isinstance(mapping, Mapping):
                    raise WireError("a mapping of a static topic that is no object")
                mappings[str(mapping.get("topic"))] = mapping
        return RegisterBrokerBody(
            filter_server_list=list(map(str, servers)) if isinstance(servers, list) else [],
            topic_config_serialize_wrapper=TopicTable(
                data_version=data_version,
                topic_config_table=topics,
                topic_queue_mapping_info_map=mappings,
            ),
        )

    def _number(self) -> int:
        number = int.from_bytes(self._take(4), "big", signed=True)
        if number < 0:
            raise WireError("a compressed registration has a negative length")
        return number

    def _take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) < size:
            raise WireError("a compressed registration ends early")
        self._at += size
        return piece

    def _piece(self) -> bytes:
        return self._take(self._number())

    def _text(self) -> str:
        try:
            return self._piece().decode()
        except UnicodeDecodeError:
            raise WireError("a compressed registration holds a text that is not UTF-8") from None


def _attributes(text: str, allowance: fastjson.Allowance | None) -> dict[str, str]:
    if text == "{}":
        return {}
    try:
        attributes: Any = _decode_attributes(text)
    except msgspec.DecodeError:
        # A space inside of an attribute breaks RocketMQ's own reading of the line, and it goes on
        # without attributes; so do we.
        try:
            attributes = fastjson.loads(text, None, allowance)
        except WireError:
            return {}
    if not isinstance(attributes, dict):
        return {}
    return {str(key): str(value) for key, value in attributes.items() if value is not None}


def _int32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _sized(piece: bytes) -> bytes:
    return _int32(len(piece)) + piece
