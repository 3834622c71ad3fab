"""Requests that went wrong on the way: real ones, changed at random, the same for the same seed.

Half of the changes are to bytes, and mostly end at the frame or its header; the others leave the
frame whole and change what it says, so that they reach the handlers.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from onelog.wire.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, Serialize
from onelog.wire.remoting.frame import RemotingFrameReader
from tests.wire.remoting.commands import encode_command

NASTY = (
    "",
    " ",
    "-1",
    "0",
    "1",
    "2147483647",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "1e9",
    "NaN",
    "null",
    "true",
    "１２",
    "\0",
    "\x01",
    "\x02",
    "../../etc/passwd",
    "%RETRY%fuzz",
    "%DLQ%fuzz",
    "SCHEDULE_TOPIC_XXXX",
    "a\x01b\x02",
    "x" * 300,
    "x" * 40_000,
    "é" * 100,
    "\ud7ff",
    "{}",
    "[" * 200,
    "a > 1 AND b IN ('x')",
    "0 0 0",
)
"""What fields are replaced with."""
ODD_VALUES: tuple[object, ...] = (None, True, -1, 1.5, 1e300, 2**31, 2**63 - 1, -(2**63), [], {})
"""What values in bodies are replaced with, besides."""
BODY_BYTES_MAX = 200_000
"""Of a body of JSON that was made larger: a few changes in a row would make it explode."""


def commands(frames: Sequence[bytes]) -> list[Command]:
    """The commands in these frames, which are whole."""
    reader = RemotingFrameReader()
    reader.feed(b"".join(frames))
    return list(reader.commands())


def _parts(value: Any) -> list[Any]:
    """All objects and lists in a JSON value, itself included."""
    inner = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(inner, list):
        return []
    return [value, *(part for each in inner for part in _parts(each))]


def _keys(part: Any) -> list[Any]:
    return sorted(part) if isinstance(part, dict) else list(range(len(part)))


class Mutation:
    """Makes one changed request after the other out of real ones."""

    def __init__(self, requests: Sequence[Command], random: Random) -> None:
        self._requests = requests
        self._random = random
        self._in_bytes: tuple[Callable[[bytearray], None], ...] = (
            self._overwrite,
            self._overwrite,
            self._cut,
            self._insert,
            self._remove,
            self._resize,
        )
        self._in_words: tuple[Callable[[Command], Command], ...] = (
            self._with_fields,
            self._with_fields,
            self._with_body,
            self._with_value,
            self._with_dialect,
            self._with_code,
            self._with_flag,
        )

    def hello(self) -> bytes:
        """How a connection begins: remoting has no greeting."""
        return b""

    def frame(self) -> bytes:
        """The next one."""
        dice = self._random
        command = dice.choice(self._requests)
        if dice.random() < 0.5:
            for _ in range(dice.randrange(1, 4)):
                command = dice.choice(self._in_words)(command)
            return self._encoded(command)
        frame = bytearray(self._encoded(command))
        dice.choice(self._in_bytes)(frame)
        return bytes(frame)

    def _encoded(self, command: Command) -> bytes:
        serialize = self._random.choice((Serialize.JSON, Serialize.COMPACT))
        return b"".join(encode_command(replace(command, serialize=int(serialize))))

    # -- bytes -----------------------------------------------------------------------------------

    def _overwrite(self, frame: bytearray) -> None:
        for _ in range(self._random.randrange(1, 6)):
            frame[self._random.randrange(len(frame))] = self._random.randrange(256)

    def _cut(self, frame: bytearray) -> None:
        del frame[self._random.randrange(len(frame)) :]

    def _insert(self, frame: bytearray) -> None:
        at = self._random.randrange(len(frame))
        frame[at:at] = self._random.randbytes(self._random.randrange(1, 40))

    def _remove(self, frame: bytearray) -> None:
        at = self._random.randrange(len(frame))
        del frame[at : at + self._random.randrange(1, 40)]

    def _resize(self, frame: bytearray) -> None:
        """The frame or its header claims another length."""
        claimed = self._random.choice(
            (0, 3, 4, 1 << 20, (1 << 31) - 1, self._random.getrandbits(32))
        )
        at = self._random.choice((0, 4))
        frame[at : at + 4] = claimed.to_bytes(4, "big")

    # -- words -----------------------------------------------------------------------------------

    def _with_fields(self, command: Command) -> Command:
        dice, ext = self._random, dict(command.ext)
        if not ext:
            return self._with_body(command)
        name = dice.choice(sorted(ext))
        kind = dice.randrange(4)
        if kind == 0:
            del ext[name]
        elif kind == 1:
            ext[name] = dice.choice(NASTY)
        elif kind == 2:
            ext[name] = dice.choice(sorted(ext.values()))
        else:
            ext[name] = str(
                dice.randrange(-(2 ** dice.randrange(1, 66)), 2 ** dice.randrange(1, 66))
            )
        return replace(command, ext=ext)

    def _with_body(self, command: Command) -> Command:
        dice, body = self._random, bytearray(command.body)
        kind = dice.randrange(4)
        if kind == 0 or not body:
            other = dice.choice(self._requests).body
            return replace(command, body=bytes(other) or dice.randbytes(dice.randrange(60)))
        if kind == 1:
            del body[dice.randrange(len(body)) :]
        elif kind == 2:
            self._overwrite(body)
        else:
            self._insert(body)
        return replace(command, body=bytes(body))

    def _with_value(self, command: Command) -> Command:
        """A value in a body of JSON is of another kind, or missing."""
        try:
            body = msgspec.json.decode(bytes(command.body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._with_body(command)
        dice = self._random
        places = [(part, key) for part in _parts(body) for key in _keys(part)]
        if not places:
            return self._with_body(command)
        part, key = dice.choice(places)
        whole = msgspec.Raw(bytes(command.body))
        part[key] = dice.choice((*NASTY, *ODD_VALUES, whole, [whole] * 3))
        if dice.random() < 0.2:
            del part[key]
        return replace(command, body=msgspec.json.encode(body))

    def _with_dialect(self, command: Command) -> Command:
        """JSON as only fastjson reads it, with long lists, deep nests, and references to them."""
        dice = self._random
        try:
            body = msgspec.json.decode(bytes(command.body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._with_body(command)
        places = [(part, key) for part in _parts(body) for key in _keys(part)]
        if not places:
            return self._with_body(command)
        (part, key), (other, name) = dice.choice(places), dice.choice(places)
        kind = dice.randrange(4)
        if kind == 0:
            part[key] = [part[key]] * dice.randrange(1, 1_000)
        elif kind == 1:
            for _ in range(dice.randrange(1, 100)):
                part[key] = [part[key]] if dice.random() < 0.5 else {"a": part[key]}
        elif kind == 2:
            other[name] = [0] * dice.randrange(1, 1_000)
            path = dice.choice(("$", "..", "@", f"$.{name}", f"$.{key}[0]", f"$.{name}.{key}"))
            part[key] = [{"$ref": path}] * dice.randrange(1, 500)
        text = msgspec.json.encode(body)
        if dice.random() < 0.8:
            text = text.replace(b'"', b"'")
        if dice.random() < 0.3:
            text = text.replace(b"':", b":").replace(b"{'", b"{").replace(b",'", b",")
        return replace(command, body=text) if len(text) <= BODY_BYTES_MAX else command

    def _with_code(self, command: Command) -> Command:
        """The fields of one request, the code of another; or a code that nobody knows."""
        other = self._random.choice(self._requests).code
        return replace(command, code=self._random.choice((other, self._random.randrange(32_000))))

    def _with_flag(self, command: Command) -> Command:
        flag = self._random.choice((FLAG_ONEWAY, FLAG_RESPONSE, 3, -1, 1 << 20))
        opaque = self._random.choice((0, -1, 2**31 - 1, -(2**31)))
        return replace(command, flag=flag, opaque=opaque)
