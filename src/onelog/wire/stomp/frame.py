"""Frames: how commands, headers and bodies follow one another on a connection.

    COMMAND EOL
    name:value EOL              any number of these; the first of a name counts
    EOL
    body NUL                    as long as `content-length` says, or up to the first NUL
    EOL*                        between frames: heart-beats

An EOL is LF, or CR LF. Names and values are UTF-8 with escapes. These differ by version: 1.0 has
none, 1.1 has `\\n`, `\\c` and `\\\\`, and 1.2 has `\\r`, too. CONNECT and CONNECTED never have any.
In 1.0, spaces around names and values are no part of them.

Invariants: however the bytes of a connection are cut into pieces, the frames are the same; bytes
that are no frame raise `WireError`; nothing beyond the limits is kept.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from onelog.errors import WireError

VERSIONS = ("1.0", "1.1", "1.2")
HEAD_BYTES_MAX = 64 << 10
"""Command and headers."""
HEADERS_MAX = 1_000
COMMAND_BYTES_MAX = 32

_HEAD_END = re.compile(rb"\n\r?\n")
_NOT_EOL = re.compile(rb"[^\r\n]")
_LENGTH = re.compile(r"[0-9]{1,18}")
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_PLAIN = ("CONNECT", "STOMP", "CONNECTED")
"""Their headers are read before a version is agreed on."""

_UNESCAPES = {
    "1.1": {"n": "\n", "c": ":", "\\": "\\"},
    "1.2": {"n": "\n", "c": ":", "\\": "\\", "r": "\r"},
}
# A NUL would end the frame, and a line feed the header: readers of 1.0 get them as what they see.
_ESCAPES = {
    "1.0": str.maketrans({"\n": "\\n", "\0": ""}),
    "1.1": str.maketrans({"\n": "\\n", ":": "\\c", "\\": "\\\\", "\0": ""}),
    "1.2": str.maketrans({"\n": "\\n", ":": "\\c", "\\": "\\\\", "\r": "\\r", "\0": ""}),
}
_UNSAFE = re.compile(r"[\n\r:\\\0]")


class Frame(NamedTuple):
    """A frame, its headers without escapes."""

    command: str
    headers: dict[str, str]
    body: bytes


class StompFrameReader:
    """Takes bytes as they come, hands out frames."""

    __slots__ = (
        "_at _body_bytes_max _data _head _pieces _searched _seeks_nul _wanted unread_bytes version"
    ).split()

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self.version = ""
        """What the two sides have agreed on; empty before that."""
        self._data = b""
        """What is being read, from `_at` on; `_pieces` come after it."""
        self._at = 0
        self._searched = 0
        """Up to where the end of what is being read is not."""
        self._pieces: list[bytes] = []
        self._wanted = 1
        """How many unread bytes are needed to get any further."""
        self._seeks_nul = False
        """Whether a body is being read whose end nobody told."""
        self._head: tuple[str, dict[str, str], int] | None = None
        """Of a frame whose body is not there yet: its length, or -1."""
        self.unread_bytes = 0
        """How many received bytes have not become a frame yet."""

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._pieces.append(data)
        self.unread_bytes += len(data)
        if self._seeks_nul and self.unread_bytes <= self._body_bytes_max and b"\0" not in data:
            self._wanted = self.unread_bytes + 1

    def frames(self) -> Iterator[Frame]:
        """The frames that are complete by now. May be left at any point and called again."""
        while self.unread_bytes >= self._wanted:
            if self._pieces:
                # Joined when there is enough to get further, however many pieces a body comes in.
                self._data = b"".join((self._data[self._at :], *self._pieces))
                self._searched -= self._at
                self._at = 0
                self._pieces = []
            if self._head is None and not self._read_head():
                return
            assert self._head is not None
            command, headers, length = self._head
            end = self._body_end(length)
            if end < 0:
                return
            body = self._data[self._at : end]
            self._head = None
            self._move(end + 1)
            yield Frame(command, headers, body)

    def _move(self, at: int) -> None:
        self.unread_bytes -= at - self._at
        self._at = self._searched = at
        self._wanted = 1

    def _need_more(self, searched: int) -> None:
        self._searched = max(searched, self._at)
        self._wanted = self.unread_bytes + 1

    def _read_head(self) -> bool:
        """Read command and headers; False if they are not there yet."""
        data = self._data
        begin = _NOT_EOL.search(data, self._at)
        self._move(len(data) if begin is None else begin.start())
        if begin is None:
            return False
        end = _HEAD_END.search(data, self._searched, self._at + HEAD_BYTES_MAX + 3)
        if end is None:
            if len(data) - self._at > HEAD_BYTES_MAX:
                raise WireError(f"command and headers of more than {HEAD_BYTES_MAX} bytes")
            self._refuse_nonsense(data)
            self._need_more(len(data) - 2)
            return False
        command, headers = _parsed(data[self._at : end.start()], self.version)
        length = self._length(headers)
        self._head = (command, headers, length)
        self._move(end.end())
        self._wanted = max(length, 0) + 1
        return self.unread_bytes >= self._wanted

    def _refuse_nonsense(self, data: bytes) -> None:
        """Another protocol seldom has two empty lines: it is not waited for."""
        eol = data.find(b"\n", self._at)
        if (len(data) if eol < 0 else eol) - self._at > COMMAND_BYTES_MAX + 1:
            raise WireError(f"a command of more than {COMMAND_BYTES_MAX} bytes")
        if data.find(b"\0", self._searched) >= 0:
            raise WireError("NUL in a header, or no empty line before a body")

    def _length(self, headers: dict[str, str]) -> int:
        given = headers.get("content-length")
        if given is None:
            return -1
        if not _LENGTH.fullmatch(given.strip()):
            raise WireError(f"content-length {given[:40]!r} is no number of bytes")
        length = int(given)
        if length > self._body_bytes_max:
            raise WireError(f"a body of {length} bytes; the limit is {self._body_bytes_max}")
        return length

    def _body_end(self, length: int) -> int:
        """Where the NUL after the body is; -1 if it is not there yet."""
        if length >= 0:
            end = self._at + length
            if self._data[end] != 0:
                raise WireError(f"no NUL after a body of content-length {length}")
            return end
        end = self._data.find(b"\0", self._searched)
        if (len(self._data) if end < 0 else end) - self._at > self._body_bytes_max:
            raise WireError(f"a body of more than {self._body_bytes_max} bytes")
        if end < 0:
            self._need_more(len(self._data))
        self._seeks_nul = end < 0
        return end


def _parsed(head: bytes, version: str) -> tuple[str, dict[str, str]]:
    """A command and its headers."""
    try:
        text = str(head, "utf-8")
    except UnicodeDecodeError:
        raise WireError("headers that are not UTF-8") from None
    if "\0" in text:
        raise WireError("NUL in a header, or no empty line before a body")
    if "\r" in text:
        text = text.removesuffix("\r").replace("\r\n", "\n")
    command, *lines = text.split("\n")
    if len(command) > COMMAND_BYTES_MAX:
        raise WireError(f"a command of more than {COMMAND_BYTES_MAX} bytes")
    if len(lines) > HEADERS_MAX:
        raise WireError(f"{len(lines)} headers; the limit is {HEADERS_MAX}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise WireError(f"a header is name:value, and not {line[:80]!r}")
        if name not in headers:
            headers[name] = value
    if command in _PLAIN:
        version = "" if "accept-version" in headers else "1.0"
    if version == "1.0":
        headers = {name.strip(): value.strip() for name, value in headers.items()}
    elif version and "\\" in text:
        headers = _unescaped(headers, version)
    return command, headers


def _unescaped(headers: dict[str, str], version: str) -> dict[str, str]:
    table = _UNESCAPES[version]

    def meant(match: re.Match[str]) -> str:
        found = table.get(match[1])
        if found is None:
            raise WireError(f"{match[0]!r} is no escape in a header of STOMP {version}")
        return found

    found: dict[str, str] = {}
    for name, value in headers.items():
        found.setdefault(_ESCAPED.sub(meant, name), _ESCAPED.sub(meant, value))
    return found


def encode_frame(
    command: str, headers: Iterable[tuple[str, str]], body: bytes = b"", version: str = "1.2"
) -> bytes:
    """A frame's bytes. Whoever has a body says its `content-length`."""
    version = "1.0" if command in _PLAIN else version
    return b"%b\n%b\n%b\0" % (command.encode(), header_lines(headers, version), body)


def header_lines(headers: Iterable[tuple[str, str]], version: str) -> bytes:
    """Headers as lines, with the escapes of a version."""
    lines = []
    for name, value in headers:
        if _UNSAFE.search(value) or _UNSAFE.search(name):
            table = _ESCAPES[version]
            name, value = name.translate(table), value.translate(table)
        lines.append(f"{name}:{value}\n")
    return "".join(lines).encode("utf-8", "replace")
