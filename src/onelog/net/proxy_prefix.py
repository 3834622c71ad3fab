"""HAProxy's prefix: where a connection comes from that a load balancer passes on.

    v1   PROXY TCP4 <source> <destination> <source port> <destination port>\\r\\n    (or UNKNOWN)
    v2   12 bytes of signature | int8 version 2 and command | int8 family and transport
         int16 length | source | destination | int16 source port | int16 destination port | more

It stands before everything else, TLS too. Only `net.proxy_protocol` has it looked for: whoever can
connect could claim to be anybody by it. Invariant: `parse` gives the size of a whole prefix, None
where none begins, and raises `WireError` for one that makes no sense.
"""

import ipaddress
import struct
from typing import NamedTuple

from onelog.errors import WireError

PREFIX_BYTES_MAX = 536
"""A v1 prefix has up to 107; v2 ones have 16 and what they tell."""
_V1 = b"PROXY "
_V2 = b"\r\n\r\n\x00\r\nQUIT\n"
_V1_BYTES_MAX = 107
_LENGTH = struct.Struct(">BBH")


class Prefix(NamedTuple):
    """A prefix: its size, 0 if the rest has yet to come, and whom it names, if anybody."""

    size: int
    source: tuple[str, int] | None = None


def parse(data: bytes) -> Prefix | None:
    """The prefix at the start of a connection; None if it has none."""
    if data.startswith(_V1[: len(data)]):
        return _text(data)
    if data.startswith(_V2[: len(data)]):
        return _binary(data)
    return None


def _text(data: bytes) -> Prefix:
    line, ended, _ = data.partition(b"\r\n")
    if not ended:
        if len(data) > _V1_BYTES_MAX:
            raise WireError("a PROXY line that does not end")
        return Prefix(0)
    words = line.decode("ascii", "replace").split(" ")
    size = len(line) + 2
    if words[1:2] == ["UNKNOWN"]:
        return Prefix(size)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6") or not words[4].isdecimal():
        raise WireError(f"a PROXY line that makes no sense: {line[:107]!r}")
    return Prefix(size, _checked(words[2], int(words[4])))


def _checked(host: str, port: int) -> tuple[str, int]:
    try:
        address = str(ipaddress.ip_address(host))
    except ValueError:
        raise WireError(f"a PROXY line with the address {host[:60]!r}") from None
    if not 0 <= port < 65_536:
        raise WireError(f"a PROXY line with the port {port}")
    return address, port


def _binary(data: bytes) -> Prefix:
    if len(data) < 16:
        return Prefix(0)
    version, family, length = _LENGTH.unpack_from(data, 12)
    size = 16 + length
    if version >> 4 != 2 or size > PREFIX_BYTES_MAX:
        raise WireError(f"a PROXY prefix of version {version >> 4} and {size} bytes")
    if len(data) < size:
        return Prefix(0)
    width = {0x11: 4, 0x21: 16}.get(family)
    if version & 0xF != 1 or width is None or length < 2 * width + 4:
        return Prefix(size)  # A check of the balancer's own, or a family that has no address here.
    host = str(ipaddress.ip_address(data[16 : 16 + width]))
    (port,) = struct.unpack_from(">H", data, 16 + 2 * width)
    return Prefix(size, (host, port))
