"""What bodies in JSON have in common: a struct that encodes and decodes itself.

Fields are in the alphabetical order of their names on the wire, which is fastjson's, so that a
body equals byte for byte what RocketMQ writes. Invariant: `decode` gives a whole body, or raises
`WireError`; a member that is missing or null has its default, one that is unknown is ignored. Every
text of a body that is sent to a server is a `Name` or a `Text`, and so has a bound.
"""

from typing import Annotated, Any, ClassVar, Self

import msgspec

from onelog.errors import WireError
from onelog.message import Buffer
from onelog.wire.remoting import fastjson
from onelog.wire.remoting.command import INT32_MAX, INT32_MIN
from onelog.wire.remoting.fields import NAME_CHARS_MAX, TEXT_CHARS_MAX

Int32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]
"""For numbers that are keys: hashes of longer ones can be chosen to be the same."""
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]
"""A name, an id or an address."""
Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
"""A filter, say."""
OBJECTS_MAX = 20_000
"""In the body of a request: topics, groups or subscriptions."""
_VALUES_OF_ONE = 20
_SHORT_BYTES = 64 << 10


def require_few(data: Buffer, objects_max: int = OBJECTS_MAX) -> None:
    """`WireError` if a request names more than is done for one."""
    if len(data) > _SHORT_BYTES:
        text = bytes(data)
        if (
            text.count(b"{") > objects_max
            or text.count(b"[") > objects_max
            or text.count(b",") > objects_max * _VALUES_OF_ONE
        ):
            raise WireError(f"more than {objects_max} objects in one request")


class Body(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A value that travels as a JSON body."""

    _decoders: ClassVar[dict[type, msgspec.json.Decoder[Any]]] = {}

    def encode(self) -> bytes:
        return fastjson.dumps(self)

    @classmethod
    def decode(cls, data: Buffer, allowance: fastjson.Allowance | None = None) -> Self:
        """The value that `data` spells; `allowance` is for what is not plain JSON."""
        decoder = cls._decoders.get(cls)
        if decoder is None:
            decoder = cls._decoders[cls] = msgspec.json.Decoder(cls)
        try:
            decoded: Self = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls._decode_leniently(data, allowance)
        # A reference is plain JSON, too: an object that has none of the members it stands for.
        if b'"$ref"' in bytes(data):
            return cls._decode_leniently(data, allowance)
        return decoded

    @classmethod
    def decode_request(cls, data: Buffer, objects_max: int = OBJECTS_MAX) -> Self:
        """What a client asks for, of which there is to be a bound."""
        require_few(data, objects_max)
        return cls.decode(data)

    @classmethod
    def decode_answer(cls, data: Buffer) -> Self:
        """What a node says that we asked, which may be long: tables of all queues, say."""
        return cls.decode(data, fastjson.Allowance(fastjson.ANSWER_PIECES_MAX))

    @classmethod
    def _decode_leniently(cls, data: Buffer, allowance: fastjson.Allowance | None) -> Self:
        members = fastjson.loads(data, MessageQueue.from_members, allowance)
        if b"null" in bytes(data):
            members = _without_nulls(members)
        try:
            return msgspec.convert(members, cls, strict=False, str_keys=True)
        except msgspec.ValidationError as error:
            raise WireError(f"no {cls.__name__}: {error}") from None


class MessageQueue(Body, frozen=True):
    """One queue of a topic on one broker; as a key of a table it is written as an object."""

    broker_name: Name = ""
    queue_id: Int32 = 0
    topic: Name = ""

    @classmethod
    def from_members(cls, members: dict[str, Any]) -> Self:
        """The queue that an object used as a key describes."""
        queue_id = int(members.get("queueId", 0))
        if not INT32_MIN <= queue_id <= INT32_MAX:
            raise WireError("an object that cannot be a key: its queue id does not fit 32 bits")
        return cls(
            broker_name=str(members.get("brokerName", "")),
            queue_id=queue_id,
            topic=str(members.get("topic", "")),
        )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
