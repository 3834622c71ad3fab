"""What bodies in JSON have in common: a struct that encodes and decodes itself.

Fields are in the alphabetical order of their names on the wire, which is fastjson's, so that a
body equals byte for byte what RocketMQ writes. Invariant: `decode` gives a whole body, or raises
`WireError`; a member that is missing or null has its default, one that is unknown is ignored. Every
text of a body that is sent to a server is a `Name` or a `Text`, and so has a bound.
"""

from typing import Annotated, Any, ClassVar, Self

import msgspec

from onelog.errors import WireError
from onelog.wire.remoting import fastjson
from onelog.wire.remoting.command import Buffer
from onelog.wire.remoting.fields import NAME_CHARS_MAX, TEXT_CHARS_MAX

Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]
"""A name, an id or an address."""
Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
"""A filter, say."""


class Body(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A value that travels as a JSON body."""

    _decoders: ClassVar[dict[type, msgspec.json.Decoder[Any]]] = {}

    def encode(self) -> bytes:
        """The body's bytes."""
        return fastjson.dumps(self)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """The value that `data` spells."""
        decoder = cls._decoders.get(cls)
        if decoder is None:
            decoder = cls._decoders[cls] = msgspec.json.Decoder(cls)
        try:
            decoded: Self = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls._decode_leniently(data)
        return decoded

    @classmethod
    def _decode_leniently(cls, data: Buffer) -> Self:
        members = _without_nulls(fastjson.loads(data, MessageQueue.from_members))
        try:
            return msgspec.convert(members, cls, strict=False, str_keys=True)
        except msgspec.ValidationError as error:
            raise WireError(f"no {cls.__name__}: {error}") from None


class MessageQueue(Body, frozen=True):
    """One queue of a topic on one broker; as a key of a table it is written as an object."""

    broker_name: Name = ""
    queue_id: int = 0
    topic: Name = ""

    @classmethod
    def from_members(cls, members: dict[str, Any]) -> Self:
        """The queue that an object used as a key describes."""
        return cls(
            broker_name=str(members.get("brokerName", "")),
            queue_id=int(members.get("queueId", 0)),
            topic=str(members.get("topic", "")),
        )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
