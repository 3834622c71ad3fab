"""The request that sends a message, as clients write it: most of its header never changes.

A producer sends to the same few queues again and again, so the JSON header of SEND_MESSAGE_V2 and
its kin is made once per queue, with gaps for what each message says of itself. `send.py` is the
other side: it reads these headers.

Invariant: a filled template is, field by field, what `encode_request` makes of the same fields.
"""

import struct

import msgspec

from onelog.wire.remoting.codes import VERSION, RequestCode
from onelog.wire.remoting.command import FLAG_ONEWAY

_START = struct.Struct(">iI")
_text = msgspec.json.Encoder().encode


class SendTemplate:
    """What is the same in all sends of a producer to one queue."""

    __slots__ = ("_kin", "_template", "fields")

    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        broker: str,
        *,
        default_topic: str,
        default_queues: int,
        code: int = RequestCode.SEND_MESSAGE_V2,
        language: str = "PYTHON",
    ) -> None:
        is_batch = code == RequestCode.SEND_BATCH_MESSAGE
        self.fields = {
            "a": group,
            "b": topic,
            "c": default_topic,
            "d": str(default_queues),
            "e": str(queue_id),
            "j": "0",
            "k": "false",
            "m": "true" if is_batch else "false",
            "n": broker,
        }
        """The request's own fields; those of the message are missing."""
        self._kin: dict[int, SendTemplate] = {}
        same = b",".join(
            _text(key) + b":" + _text(value).replace(b"%", b"%%")
            for key, value in self.fields.items()
        )
        self._template = (
            b'{"code":%d,"extFields":{' % code
            + same
            + b',"f":"%d","g":"%d","h":"%d","i":%b},"flag":%d,"language":"'
            + language.encode()
            + b'","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":'
            + b"%d}" % VERSION
        )

    def head(
        self,
        opaque: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: str,
        body_bytes: int,
        oneway: bool = False,
    ) -> bytes:
        """Everything of the request but the body, which follows."""
        header = self._template % (
            sys_flag,
            born_ms,
            flag,
            _text(properties),
            FLAG_ONEWAY if oneway else 0,
            opaque,
        )
        size = len(header)
        return _START.pack(4 + size + body_bytes, size) + header

    def with_code(self, code: int) -> "SendTemplate":
        """The same for another request to that queue: a batch, or a reply."""
        kin = self._kin.get(code)
        if kin is None:
            fields = self.fields
            kin = self._kin[code] = SendTemplate(
                fields["a"],
                fields["b"],
                int(fields["e"]),
                fields["n"],
                default_topic=fields["c"],
                default_queues=int(fields["d"]),
                code=code,
            )
        return kin

    def message_fields(
        self, sys_flag: int, born_ms: int, flag: int, properties: str
    ) -> dict[str, str]:
        """All fields, as texts: what a signature is made of."""
        return {
            **self.fields,
            "f": str(sys_flag),
            "g": str(born_ms),
            "h": str(flag),
            "i": properties,
        }
