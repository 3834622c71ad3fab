"""Kafka's requests and answers: a table of fields, compiled into functions per version.

`schemas.txt` has one block for each API, in the order of the bytes:

    0 Produce 3-13 flexible 9+            key, name, versions, since when lengths are compact
      request
        transactional_id string? 3+ =null     name, type, versions (all, if none), default
        topic_data []                         an array of what is indented below it
          name string 0-12
      response
        ...
            current_leader {} 10+ tag0        a structure; sent with its tag, if it is not missing

    string? may be null; string?7+ may be null from version 7 on. A type after [] is an array of it.

A request or an answer is a dict with a key for each field of its version. What is missing from a
dict to be encoded has its default. Fields of one length that follow each other are packed and
unpacked by one call.

Invariants: decoding gives what was encoded; bytes that are no such message raise `WireError`; no
array is longer than the bytes that are left for it, and no text longer than Kafka lets it be.
"""

import functools
import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, cast

from onelog.errors import WireError
from onelog.record.forms.kafka import encode_uvarint

Fields = dict[str, Any]
"""A request or an answer, or a structure inside one."""
Decode = Callable[[memoryview, int], tuple[Fields, int]]
"""Takes bytes and a place in them; gives the fields and the place behind them."""
Encode = Callable[[Fields, "list[bytes | memoryview]"], None]
"""Adds the bytes of the fields to a list."""

_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_ZEROS: dict[str, str] = {"bool": "False", "string": "''", "bytes": "b''", "float64": "0.0"}
_NO_UUID = bytes(16)
_SMALL = [bytes((each,)) for each in range(128)]
"""Varints of one byte, as nearly all are; what is compiled makes no call for them."""
STRING_BYTES_MAX = (1 << 15) - 1
_STEP = 1_000
"""Elements of one length that are decoded in one step."""


@dataclass(slots=True)
class _Field:
    """One line of the table."""

    name: str
    kind: str
    is_array: bool
    nullable: range
    versions: range
    tag: int | None
    tagged: range
    default: str | None
    fields: "list[_Field]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its number, its versions, and what it looks like on the wire."""

    key: int
    name: str
    versions: range
    flexible: range
    request: list[_Field]
    response: list[_Field]


def _versions(text: str) -> range:
    first, dash, last = text.partition("-")
    if first.endswith("+"):
        return range(int(first[:-1]), 32_768)
    return range(int(first), int(last if dash else first) + 1)


_ALWAYS = _versions("0+")
_NEVER = range(0)


def _parse_field(text: str) -> _Field:
    name, kind, *rest = text.split()
    kind, question, null_from = kind.partition("?")
    is_array = kind.startswith("[]")
    versions, tag, tagged, default = _ALWAYS, None, _NEVER, None
    for word in rest:
        if word.startswith("="):
            default = word[1:]
        elif word.startswith("tag"):
            number, _, since = word[3:].partition(":")
            tag, tagged = int(number), _versions(since) if since else versions
        else:
            versions = _versions(word)
    nullable = (_versions(null_from) if null_from else _ALWAYS) if question else _NEVER
    base = kind.removeprefix("[]")
    return _Field(name, base or "{}", is_array, nullable, versions, tag, tagged, default)


@functools.cache
def apis() -> dict[int, Api]:
    """Every API of the table, by its key."""
    found: dict[int, Api] = {}
    parents: list[list[_Field]] = []
    for line in resources.files(__package__).joinpath("schemas.txt").read_text().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        if depth == 0:
            key, name, versions, *flexible = line.split()
            since = _versions(flexible[1]) if len(flexible) > 1 else _NEVER
            api = Api(int(key), name, _versions(versions), since, [], [])
            found[api.key] = api
        elif depth == 1:
            parents = [getattr(api, line.strip())]
        else:
            del parents[depth - 1 :]
            parents[-1].append(_parse_field(line))
            parents.append(parents[-1][-1].fields)
    return found


# -- primitives --------------------------------------------------------------------------------


def uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise WireError("a varint has more than five bytes")


def _take(data: memoryview, at: int, size: int) -> tuple[memoryview, int]:
    end = at + size
    if end > len(data):
        raise WireError(f"a field claims {size} bytes where {len(data) - at} are left")
    return data[at:end], end


def _room(data: memoryview, at: int, count: int) -> int:
    if count > len(data) - at:
        raise WireError(f"an array claims {count} elements in {len(data) - at} bytes")
    return count


def _elements(raw: memoryview, form: str) -> Generator[int, None, list[Any]]:
    """Numbers that follow each other, in steps."""
    found: list[Any] = []
    width = struct.calcsize(">" + form)
    for at in range(0, len(raw), width * _STEP):
        part = raw[at : at + width * _STEP]
        found += struct.unpack(">" + form * (len(part) // width), part)
        yield len(part) // width
    return found


def skip_tags(data: memoryview, at: int) -> int:
    """The place behind tagged fields that nobody here knows."""
    count, at = uvarint(data, at)
    for _ in range(_room(data, at, count)):
        _, at = uvarint(data, at)
        size, at = uvarint(data, at)
        _, at = _take(data, at, size)
    return at


# -- compiling ---------------------------------------------------------------------------------


class _Source:
    """A function in the making."""

    def __init__(self, head: str) -> None:
        self.lines = [head]
        self.names: dict[str, Any] = {
            "uvarint": uvarint,
            "encode_uvarint": encode_uvarint,
            "SMALL": _SMALL,
            "take": _take,
            "room": _room,
            "elements": _elements,
            "STRING_BYTES_MAX": STRING_BYTES_MAX,
            "skip_tags": skip_tags,
            "WireError": WireError,
            "NO_UUID": _NO_UUID,
        }
        self._count = 0

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def layout(self, form: str) -> str:
        name = f"layout_{form.replace('?', 'o')}"
        self.names[name] = struct.Struct(">" + form)
        return name

    def function(self, name: str) -> Any:
        exec(compile("\n".join(self.lines), f"<kafka {name}>", "exec"), self.names)
        return self.names[name]


def _runs(fields: list[_Field], version: int) -> Iterator[list[_Field]]:
    """The untagged fields of a version: those of fixed length that are neighbours together."""
    run: list[_Field] = []
    for each in fields:
        if version not in each.versions or version in each.tagged:
            continue
        if each.kind in _FIXED and not each.is_array:
            run.append(each)
            continue
        if run:
            yield run
            run = []
        yield [each]
    if run:
        yield run


def _is_fixed(run: list[_Field]) -> bool:
    return run[0].kind in _FIXED and not run[0].is_array


def _tagged(fields: list[_Field], version: int) -> list[_Field]:
    return [each for each in fields if version in each.versions and version in each.tagged]


def _default(each: _Field, version: int) -> str:
    """The default as an expression; for a structure, None: it is left out."""
    if each.default == "null" or (each.kind == "{}" and not each.is_array):
        return "None"
    if each.is_array:
        return "()"
    if each.default is not None:
        if each.kind == "bool":
            return each.default.capitalize()
        return repr(each.default) if each.kind == "string" else str(int(each.default, 0))
    if each.kind == "uuid":
        return "NO_UUID"
    if each.kind == "records":
        return "None"
    return _ZEROS.get(each.kind, "0")


class _Decoder:
    """Writes the function that decodes one version; `in_steps`, a generator that does."""

    def __init__(self, version: int, flexible: bool, in_steps: bool = False) -> None:
        self.version, self.flexible, self.in_steps = version, flexible, in_steps
        self.source = _Source("def decode(data, at):")

    def compiled(self, fields: list[_Field]) -> Decode:
        if self.in_steps:
            self.source.add(1, "yield 0")
        found = self.structure(fields, 1)
        self.source.add(1, f"return {found}, at")
        function: Decode = self.source.function("decode")
        return function

    def structure(self, fields: list[_Field], depth: int) -> str:
        source, parts = self.source, []
        for run in _runs(fields, self.version):
            if _is_fixed(run):
                layout = source.layout("".join(_FIXED[each.kind] for each in run))
                names = [source.fresh("v") for _ in run]
                source.add(
                    depth,
                    f"{', '.join(names)}, = {layout}.unpack_from(data, at)",
                    f"at += {source.names[layout].size}",
                )
                parts += [f"'{each.name}': {v}" for each, v in zip(run, names, strict=True)]
            else:
                parts.append(f"'{run[0].name}': {self.value(run[0], depth)}")
        found = source.fresh("s")
        tagged = _tagged(fields, self.version)
        parts += [f"'{each.name}': {_default(each, self.version)}" for each in tagged]
        source.add(depth, f"{found} = {{{', '.join(parts)}}}")
        if self.flexible:
            self.tags(tagged, found, depth)
        return found

    def tags(self, tagged: list[_Field], found: str, depth: int) -> None:
        source = self.source
        if not tagged:
            source.add(
                depth, "if data[at]:", "    at = skip_tags(data, at)", "else:", "    at += 1"
            )
            return
        count, tag, size, end = (source.fresh(stem) for stem in ("n", "t", "z", "e"))
        source.add(
            depth,
            *_uvarint(count),
            f"for _ in range(room(data, at, {count})):",
            f"    {tag}, at = uvarint(data, at)",
            f"    {size}, at = uvarint(data, at)",
            f"    _, {end} = take(data, at, {size})",
        )
        for each in tagged:
            source.add(depth + 1, f"if {tag} == {each.tag}:")
            value = (
                self.fixed(each, depth + 2)
                if each.kind in _FIXED and not each.is_array
                else self.value(each, depth + 2)
            )
            source.add(depth + 2, f"{found}['{each.name}'] = {value}")
        source.add(depth + 1, f"at = {end}")

    def fixed(self, each: _Field, depth: int) -> str:
        layout, name = self.source.layout(_FIXED[each.kind]), self.source.fresh("v")
        self.source.add(
            depth,
            f"{name}, = {layout}.unpack_from(data, at)",
            f"at += {self.source.names[layout].size}",
        )
        return name

    def length(self, each: _Field, depth: int, narrow: bool) -> str:
        """The length of a field, -1 for null."""
        name = self.source.fresh("n")
        if self.flexible:
            self.source.add(depth, *_uvarint(name), f"{name} -= 1")
        else:
            layout = self.source.layout("h" if narrow else "i")
            self.source.add(
                depth,
                f"{name}, = {layout}.unpack_from(data, at)",
                f"at += {self.source.names[layout].size}",
            )
        return name

    def value(self, each: _Field, depth: int) -> str:
        source, name = self.source, self.source.fresh("v")
        if each.kind == "{}" and not each.is_array:
            return self.nested(each, depth, name)
        size = self.length(each, depth, each.kind == "string" and not each.is_array)
        source.add(depth, f"if {size} < 0:")
        if self.version in each.nullable:
            source.add(depth + 1, f"{name} = None")
        else:
            source.add(depth + 1, f"raise WireError('{each.name} must not be null')")
        source.add(depth, "else:")
        if each.is_array:
            self.array(each, depth + 1, name, size)
        else:
            if each.kind == "string" and self.flexible:
                source.add(depth + 1, f"if {size} > STRING_BYTES_MAX:")
                source.add(depth + 2, f"raise WireError('{each.name} is too long a text')")
            end = source.fresh("e")
            source.add(
                depth + 1,
                f"{end} = at + {size}",
                f"if {end} > len(data):",
                f"    take(data, at, {size})",
                f"{name} = data[at:{end}]",
                f"at = {end}",
            )
            if each.kind == "string":
                source.add(depth + 1, f"{name} = str({name}, 'utf-8')")
            elif each.kind == "bytes":
                source.add(depth + 1, f"{name} = bytes({name})")
        return name

    def nested(self, each: _Field, depth: int, name: str) -> str:
        if self.version not in each.nullable:
            return self.structure(each.fields, depth)
        self.source.add(depth, "at += 1", "if data[at - 1] > 127:", f"    {name} = None", "else:")
        self.source.add(depth + 1, f"{name} = {self.structure(each.fields, depth + 1)}")
        return name

    def array(self, each: _Field, depth: int, name: str, size: str) -> None:
        source = self.source
        if each.kind in _FIXED:
            width = struct.calcsize(">" + _FIXED[each.kind])
            raw = source.fresh("r")
            source.add(depth, f"{raw}, at = take(data, at, {size} * {width})")
            if self.in_steps:
                source.add(depth, f"{name} = yield from elements({raw}, '{_FIXED[each.kind]}')")
            elif each.kind == "uuid":
                source.add(
                    depth,
                    f"{name} = [bytes({raw}[i : i + 16]) for i in range(0, len({raw}), 16)]",
                )
            else:
                source.names["struct"] = struct
                form = _FIXED[each.kind]
                source.add(depth, f"{name} = list(struct.unpack(f'>{{{size}}}{form}', {raw}))")
            return
        source.add(
            depth,
            f"{name} = []",
            f"if {size} > len(data) - at:",
            f"    room(data, at, {size})",
            f"for _ in range({size}):",
        )
        if self.in_steps:
            source.add(depth + 1, "yield 1")
        element = (
            self.structure(each.fields, depth + 1)
            if each.kind == "{}"
            else self.value(_element(each), depth + 1)
        )
        source.add(depth + 1, f"{name}.append({element})")


def _uvarint(name: str) -> tuple[str, ...]:
    """Lines that read a length or a count."""
    return (
        f"{name} = data[at]",
        "at += 1",
        f"if {name} > 127:",
        f"    {name}, at = uvarint(data, at - 1)",
    )


def _element(each: _Field) -> _Field:
    return _Field(each.name, each.kind, False, _NEVER, _ALWAYS, None, _NEVER, None)


class _Encoder:
    """Writes the function that encodes one version; `in_steps`, a generator that does."""

    def __init__(self, version: int, flexible: bool, in_steps: bool = False) -> None:
        self.version, self.flexible, self.in_steps = version, flexible, in_steps
        self.source = _Source("def encode(s, out):")

    def compiled(self, fields: list[_Field]) -> Encode:
        self.source.add(1, "add = out.append", *["yield"] * self.in_steps)
        self.structure(fields, "s", 1)
        self.source.add(1, "return None")
        function: Encode = self.source.function("encode")
        return function

    def got(self, each: _Field, where: str) -> str:
        return f"{where}.get('{each.name}', {_default(each, self.version)})"

    def structure(self, fields: list[_Field], where: str, depth: int) -> None:
        source = self.source
        for run in _runs(fields, self.version):
            if _is_fixed(run):
                layout = source.layout("".join(_FIXED[each.kind] for each in run))
                values = ", ".join(self.got(each, where) for each in run)
                source.add(depth, f"add({layout}.pack({values}))")
            else:
                name = source.fresh("v")
                source.add(depth, f"{name} = {self.got(run[0], where)}")
                self.value(run[0], name, depth)
        if self.flexible:
            self.tags(_tagged(fields, self.version), where, depth)

    def tags(self, tagged: list[_Field], where: str, depth: int) -> None:
        source = self.source
        if not tagged:
            source.add(depth, "add(b'\\0')")
            return
        parts = source.fresh("p")
        source.add(depth, f"{parts} = []")
        for each in sorted(tagged, key=lambda each: each.tag or 0):
            name, outer = source.fresh("v"), source.fresh("o")
            source.add(
                depth,
                f"{name} = {self.got(each, where)}",
                f"if {name}:"
                if each.is_array
                else f"if {name} is not None and {name} != {_default(each, self.version)}:",
                f"    {outer}, out = out, []",
                "    add = out.append",
            )
            self.value(each, name, depth + 1)
            source.add(
                depth + 1,
                f"{parts}.append(({each.tag}, b''.join(out)))",
                f"out = {outer}",
                "add = out.append",
            )
        tag, raw = source.fresh("t"), source.fresh("r")
        source.add(
            depth,
            f"add(SMALL[len({parts})])",
            f"for {tag}, {raw} in {parts}:",
            f"    add(encode_uvarint({tag}))",
            f"    add(encode_uvarint(len({raw})))",
            f"    add({raw})",
        )

    def length(self, expression: str, depth: int, narrow: bool) -> None:
        if self.flexible:
            size = self.source.fresh("n")
            self.source.add(
                depth,
                f"{size} = {expression} + 1",
                f"add(SMALL[{size}] if {size} < 128 else encode_uvarint({size}))",
            )
        else:
            layout = self.source.layout("h" if narrow else "i")
            self.source.add(depth, f"add({layout}.pack({expression}))")

    def value(self, each: _Field, name: str, depth: int) -> None:
        source = self.source
        if each.kind in _FIXED and not each.is_array:
            source.add(depth, f"add({source.layout(_FIXED[each.kind])}.pack({name}))")
            return
        if each.kind == "{}" and not each.is_array:
            self.nested(each, name, depth)
            return
        narrow = each.kind == "string" and not each.is_array
        source.add(depth, f"if {name} is None:")
        if self.version in each.nullable or each.kind == "records":
            self.length("-1", depth + 1, narrow)
        else:
            source.add(depth + 1, f"raise ValueError('{each.name} must not be null')")
        source.add(depth, "else:")
        if each.is_array:
            self.array(each, name, depth + 1)
        elif each.kind == "records":
            self.records(name, depth + 1)
        else:
            if each.kind == "string":
                source.add(depth + 1, f"{name} = {name}.encode()")
            self.length(f"len({name})", depth + 1, narrow)
            source.add(depth + 1, f"add({name})")

    def records(self, name: str, depth: int) -> None:
        """Records may be bytes, or a list of pieces that go to the socket as they are."""
        source = self.source
        source.add(depth, f"if isinstance({name}, list):")
        self.length(f"sum(map(len, {name}))", depth + 1, False)
        source.add(depth + 1, f"out += {name}")
        source.add(depth, "else:")
        self.length(f"len({name})", depth + 1, False)
        source.add(depth + 1, f"add({name})")

    def nested(self, each: _Field, name: str, depth: int) -> None:
        source = self.source
        if self.version in each.nullable:
            source.add(
                depth, f"if {name} is None:", "    add(b'\\xff')", "else:", "    add(b'\\1')"
            )
            self.structure(each.fields, name, depth + 1)
        else:
            source.add(depth, f"if {name} is None: {name} = {{}}")
            self.structure(each.fields, name, depth)

    def array(self, each: _Field, name: str, depth: int) -> None:
        source = self.source
        self.length(f"len({name})", depth, False)
        if each.kind in _FIXED and each.kind != "uuid":
            source.names["struct"] = struct
            form = _FIXED[each.kind]
            source.add(depth, f"add(struct.pack(f'>{{len({name})}}{form}', *{name}))")
            return
        element = source.fresh("e")
        source.add(depth, f"for {element} in {name}:")
        if self.in_steps:
            source.add(depth + 1, "yield")
        if each.kind == "{}":
            self.structure(each.fields, element, depth + 1)
        else:
            self.value(_element(each), element, depth + 1)


def _api(key: int) -> Api:
    return apis()[key]


@functools.cache
def decoder(key: int, version: int, part: str, in_steps: bool = False) -> Any:
    """What decodes a `request` or `response` of a version: a `Decode`, or a generator like it."""
    api = _api(key)
    return _Decoder(version, version in api.flexible, in_steps).compiled(getattr(api, part))


@functools.cache
def encoder(key: int, version: int, part: str, in_steps: bool = False) -> Any:
    """The inverse: an `Encode`, or a generator like it."""
    api = _api(key)
    return _Encoder(version, version in api.flexible, in_steps).compiled(getattr(api, part))


def decode_request(key: int, version: int, data: memoryview, at: int = 0) -> Fields:
    """The fields of a request. What follows them is ignored, as Kafka does.

    librdkafka relies on that: its question for all topics has an array length that is too long.
    """
    return _decode(decoder(key, version, "request"), data, at)[0]


def decode_long_request(
    key: int, version: int, data: memoryview, at: int = 0
) -> Generator[int, None, Fields]:
    """The same in steps, for a request that may have very many parts: how many each has."""
    try:
        fields, _ = yield from decoder(key, version, "request", True)(data, at)
    except DECODE_ERRORS as error:
        raise cut_off(error) from None
    return cast(Fields, fields)


def decode_response(key: int, version: int, data: memoryview, at: int = 0) -> Fields:
    """The fields of an answer; all of its bytes must be used."""
    fields, end = _decode(decoder(key, version, "response"), data, at)
    if end != len(data):
        raise WireError(f"{len(data) - end} bytes follow the end of a message")
    return fields


def _decode(decode: Decode, data: memoryview, at: int) -> tuple[Fields, int]:
    try:
        return decode(data, at)
    except DECODE_ERRORS as error:
        raise cut_off(error) from None


DECODE_ERRORS = struct.error, IndexError, UnicodeDecodeError
"""What a `Decode` raises of bytes that are no such message, beside `WireError`."""


def cut_off(error: Exception) -> WireError:
    """What these are told as."""
    return WireError(f"a message is cut off or not what it says: {error}")


def encode_request(key: int, version: int, fields: Fields) -> "list[bytes | memoryview]":
    """The bytes of a request, in pieces."""
    out: list[bytes | memoryview] = []
    encoder(key, version, "request")(fields, out)
    return out


def encode_response(key: int, version: int, fields: Fields) -> "list[bytes | memoryview]":
    """The bytes of an answer, in pieces."""
    out: list[bytes | memoryview] = []
    encoder(key, version, "response")(fields, out)
    return out


def encode_long_response_to(
    key: int, version: int, fields: Fields, out: "list[bytes | memoryview]"
) -> Iterator[None]:
    """The same in steps, for an answer that may have very many parts."""
    yield from encoder(key, version, "response", True)(fields, out)
