"""The JSON that fastjson writes and reads, which is more than JSON.

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":3}}}   objects as keys
    {"offsetTable":{0:17,1:4}}                                                    numbers as keys
    {'name':{"$ref":"$.other"}}              single quotes, references to what was written before

`dumps` writes objects as keys where a table is keyed by structs, because Java clients read such
tables in no other form; everything else it writes is standard JSON, which all clients read. Like
fastjson it leaves out members that are null.

`loads` reads all of the above. It is slow, and a reference of fifteen characters stands for a value
of any size, so what it reads, and what that grows to, has a limit (`Allowance`). Invariant: it
returns plain values or raises `WireError`, after work that is proportional to the allowance.
"""

import functools
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from onelog.errors import WireError
from onelog.message import Buffer

DEPTH_MAX = 64
PIECES_MAX = 16_000
"""Keys, values and escapes of one request; to read so many takes some 16 ms."""
ANSWER_PIECES_MAX = 2_000_000
"""The same for an answer that we asked for, such as the offsets of all queues of a topic."""
PIECE_CHARACTERS = 64
"""Characters that go with each piece, on average."""
NUMBER_CHARACTERS_MAX = 64
WHOLE_DIGITS_MAX = 20
"""Enough for 64 bits. Python's hashes of whole numbers repeat every 2**61: of longer ones, a peer
could choose any number that share a hash, and keys made of them would be compared one by one."""

ObjectKey = Callable[[dict[str, Any]], Hashable]
"""Makes something hashable of an object that is used as a key."""

_encode = msgspec.json.Encoder().encode
_is_plain: dict[type, bool] = {}
_SIMPLE = frozenset({str, int, bool, float})
_SIMPLE_KEYS = frozenset({str, int})


def dumps(value: Any) -> bytes:
    """`value`, made of structs, dicts, lists, sets and scalars, as fastjson would write it."""
    pieces: list[bytes] = []
    _write(value, pieces)
    return b"".join(pieces)


def _write(value: Any, pieces: list[bytes]) -> None:
    if _is_simple(value):
        pieces.append(_encode(value))
    elif isinstance(value, msgspec.Struct):
        separator = b"{"
        for field, key in _fields(type(value)):
            member = getattr(value, field)
            if member is not None:
                pieces += (separator, key)
                _write(member, pieces)
                separator = b","
        pieces.append(b"{}" if separator == b"{" else b"}")
    elif isinstance(value, dict):
        _write_members(list(value.items()), pieces)
    elif isinstance(value, (list, tuple, set, frozenset)):
        pieces.append(b"[")
        for index, item in enumerate(value):
            if index:
                pieces.append(b",")
            _write(item, pieces)
        pieces.append(b"]")
    else:
        pieces.append(_encode(value))


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, bytes]]:
    """The fields of a struct, and how each begins when it is written."""
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return [(field, _encode(name) + b":") for field, name in names]


def _write_members(members: list[tuple[Any, Any]], pieces: list[bytes]) -> None:
    separator = b"{"
    for key, value in members:
        if value is None:
            continue
        pieces.append(separator)
        if isinstance(key, int):
            pieces.append(b'"%d"' % key)
        else:
            _write(key, pieces)
        pieces.append(b":")
        _write(value, pieces)
        separator = b","
    pieces.append(b"{}" if separator == b"{" else b"}")


def _is_simple(value: Any) -> bool:
    """Whether msgspec writes this value as fastjson would, and so in one go; many tables are."""
    kind = type(value)
    if kind is list:
        return _are_simple(value)
    if kind is dict:
        return _SIMPLE_KEYS.issuperset(map(type, value)) and _are_simple(value.values())
    return kind in _SIMPLE or (issubclass(kind, msgspec.Struct) and _plain(kind))


def _are_simple(values: Iterable[Any]) -> bool:
    return all(
        kind in _SIMPLE or (issubclass(kind, msgspec.Struct) and _plain(kind))
        for kind in set(map(type, values))
    )


def _plain(kind: type) -> bool:
    """Whether msgspec writes this struct as fastjson would: no nulls, no objects as keys."""
    known = _is_plain.get(kind)
    if known is None:
        known = _is_plain[kind] = _plain_info(msgspec.inspect.type_info(kind))
    return known


def _plain_info(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.StructType):
        return all(_plain_info(field.type) for field in info.fields)
    if isinstance(info, msgspec.inspect.DictType):
        return isinstance(info.key_type, _PLAIN_KEYS) and _plain_info(info.value_type)
    if isinstance(info, (msgspec.inspect.ListType, msgspec.inspect.SetType)):
        return _plain_info(info.item_type)
    return isinstance(info, _PLAIN_SCALARS)


_PLAIN_KEYS = (msgspec.inspect.StrType, msgspec.inspect.IntType)
_PLAIN_SCALARS = (*_PLAIN_KEYS, msgspec.inspect.BoolType, msgspec.inspect.FloatType)


class Allowance:
    """How much may still be read in this dialect; several texts can share one."""

    __slots__ = ("_pieces_max", "characters", "pieces")

    def __init__(self, pieces_max: int = PIECES_MAX) -> None:
        self._pieces_max = pieces_max
        self.pieces = pieces_max
        self.characters = pieces_max * PIECE_CHARACTERS

    def take(self, pieces: int, characters: int) -> None:
        """Use some of it up; `WireError` if there is not so much left."""
        self.pieces -= pieces
        self.characters -= characters
        if self.pieces < 0 or self.characters < 0:
            self.exceeded()

    def exceeded(self) -> NoReturn:
        raise WireError(
            f"more than {self._pieces_max} keys and values, or {PIECE_CHARACTERS} times as many "
            "characters, references counted as what they stand for: send less, or plain JSON"
        )


def loads(
    data: Buffer | str, object_key: ObjectKey | None = None, allowance: Allowance | None = None
) -> Any:
    """The value that `data` spells, in fastjson's dialect or in plain JSON.

    A key is a text, whether it was quoted or not, unless it is an object: that goes through
    `object_key`. Without an `allowance` there is that of one request.
    """
    allowance = allowance or Allowance()
    allowance.take(0, len(data))
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError:
        raise WireError("the JSON is not UTF-8") from None
    return _Parser(text, object_key or _items, allowance).parse()


def _items(members: dict[str, Any]) -> Hashable:
    return tuple(members.items())


_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?(?=[LSB]?\s*(?:[,:\]}]|$))", re.ASCII)
_SUFFIX = re.compile(r"[LSB]?")
_WORD = re.compile(r"[A-Za-z_$][\w$.-]*")
# Possessive, because there is never another way to read a text: a fifth of the time.
_STRING = {
    '"': re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL),
    "'": re.compile(r"'([^'\\]*+(?:\\.[^'\\]*+)*+)'", re.DOTALL),
}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_SURROGATES = re.compile("[\ud800-\udfff]")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_WORDS = {"true": True, "false": False, "null": None}
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9})\]")


class _Parser:
    """A recursive descent over one text."""

    def __init__(self, text: str, object_key: ObjectKey, allowance: Allowance) -> None:
        self._text = text
        self._at = 0
        self._object_key = object_key
        self._allowance = allowance
        self._references = False

    def parse(self) -> Any:
        value = self._value(0)
        if self._peek():
            self._fail("something follows the value")
        return _Resolver(value, self._allowance).resolved(value) if self._references else value

    def _fail(self, what: str) -> NoReturn:
        raise WireError(f"no JSON, not even fastjson's: {what} at character {self._at}")

    def _peek(self) -> str:
        first = self._text[self._at : self._at + 1]
        if first > " ":
            return first
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _count(self) -> None:
        allowance = self._allowance
        allowance.pieces -= 1
        if allowance.pieces < 0:
            allowance.exceeded()

    def _value(self, depth: int) -> Any:
        self._count()
        if depth > DEPTH_MAX:
            self._fail("nested too deeply")
        first = self._peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first in ("'", '"'):
            return self._string(first)
        if number := _NUMBER.match(self._text, self._at):
            return self._number(number)
        if (word := _WORD.match(self._text, self._at)) and word.group() in _WORDS:
            self._at = word.end()
            return _WORDS[word.group()]
        return self._fail("no value")

    def _object(self, depth: int) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        self._at += 1
        if self._peek() == "}":
            self._at += 1
            return members
        while True:
            key = self._key(depth)
            if self._peek() != ":":
                self._fail("no colon after a key")
            self._at += 1
            members[key] = self._value(depth + 1)
            self._references = self._references or key == "$ref"
            if not self._another("}"):
                return members

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self._at += 1
        if self._peek() == "]":
            self._at += 1
            return items
        while True:
            items.append(self._value(depth + 1))
            if not self._another("]"):
                return items

    def _another(self, close: str) -> bool:
        found = self._peek()
        if found not in (",", close) or not found:
            self._fail(f"neither a comma nor {close}")
        self._at += 1
        return found == ","

    def _key(self, depth: int) -> Hashable:
        self._count()
        first = self._peek()
        if first == "{":
            members = self._value(depth + 1)
            try:
                key = self._object_key(members)
                hash(key)
            except (TypeError, ValueError, KeyError, OverflowError):
                self._fail("an object that cannot be a key")
            return key
        if first in ("'", '"'):
            return self._string(first)
        found = _NUMBER.match(self._text, self._at) or _WORD.match(self._text, self._at)
        if found is None:
            self._fail("no key")
        self._at = found.end()
        return found.group()

    def _string(self, quote: str) -> str:
        found = _STRING[quote].match(self._text, self._at)
        if found is None:
            self._fail("a text without an end")
        self._at = found.end()
        raw = found.group(1)
        if "\\" not in raw:
            return raw
        self._allowance.take(raw.count("\\"), 0)
        unescaped = _ESCAPE.sub(_unescape, raw)
        # Escapes spell UTF-16; halves that found no partner would fail whoever encodes the text.
        joined = unescaped.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return _SURROGATES.sub("\ufffd", joined)

    def _number(self, found: re.Match[str]) -> int | float:
        suffix = _SUFFIX.match(self._text, found.end())
        assert suffix is not None
        self._at = suffix.end()
        text = found.group()
        if found.group(1) is None and found.group(2) is None:
            if len(text) <= WHOLE_DIGITS_MAX:
                return int(text)
        elif len(text) <= NUMBER_CHARACTERS_MAX:
            return float(text)
        return self._fail("a number with too many digits")


def _unescape(found: re.Match[str]) -> str:
    digits = found.group(1) or found.group(2)
    if digits:
        return chr(int(digits, 16))
    character = found.group(3)
    return _ESCAPED.get(character, character)


@dataclass
class _Resolver:
    """Puts in the place of each `{"$ref":"$.path"}` what the path leads to.

    A target may neither contain the reference nor hold another one: the first would make a value
    without an end, chains of the second one that doubles with every link. What references stand for
    is counted each time, because whoever uses the value goes through it each time.
    """

    _root: Any
    _allowance: Allowance

    def resolved(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        if not isinstance(value, dict):
            return value
        if _is_reference(value):
            target = self._follow(value["$ref"])
            self._count(target)
            return target
        return {key: self.resolved(item) for key, item in value.items()}

    def _count(self, target: Any) -> None:
        self._allowance.take(1, len(target) if isinstance(target, str) else 0)
        if isinstance(target, list):
            for item in target:
                self._count(item)
        elif isinstance(target, dict):
            if _is_reference(target):
                raise WireError("a $ref leads to something that holds a $ref")
            for key, item in target.items():
                self._count(key)
                self._count(item)

    def _follow(self, path: str) -> Any:
        if not path.startswith("$"):
            raise WireError(f"$ref {path[:40]!r} does not start at the root")
        value, at = self._root, 1
        while at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                raise WireError(f"$ref {path[:40]!r} is not a path")
            at = step.end()
            name, index = step.group(1), int(step.group(2) or 0)
            if name is not None and isinstance(value, dict) and name in value:
                value = value[name]
            elif name is None and isinstance(value, list) and index < len(value):
                value = value[index]
            else:
                raise WireError(f"$ref {path[:40]!r} leads nowhere")
        return value


def _is_reference(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and isinstance(value.get("$ref"), str)
