"""HAProxy's prefix, in both forms, in any pieces, and garbage."""

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.net.proxy_prefix import Prefix, parse

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def binary(host: str, port: int, command: int = 1, more: bytes = b"") -> bytes:
    """A v2 prefix."""
    address = ipaddress.ip_address(host)
    family = 0x11 if address.version == 4 else 0x21
    body = address.packed * 2 + struct.pack(">HH", port, 80) + more
    return SIGNATURE + struct.pack(">BBH", 0x20 | command, family, len(body)) + body


WHOLE = [
    (b"PROXY TCP4 10.1.2.3 10.0.0.1 4711 80\r\n", ("10.1.2.3", 4711)),
    (b"PROXY TCP6 2001:db8::1 ::1 4711 80\r\n", ("2001:db8::1", 4711)),
    (b"PROXY UNKNOWN\r\n", None),
    (binary("10.1.2.3", 4711), ("10.1.2.3", 4711)),
    (binary("2001:db8::1", 4711, more=b"\x03\x00\x04abcd"), ("2001:db8::1", 4711)),
    (binary("10.1.2.3", 4711, command=0), None),
]


@pytest.mark.parametrize(("prefix", "source"), WHOLE)
def test_a_prefix_names_the_source(prefix: bytes, source: tuple[str, int] | None) -> None:
    assert parse(prefix + b"and the rest") == Prefix(len(prefix), source)
    for size in range(1, len(prefix)):
        assert parse(prefix[:size]) == Prefix(0)


@pytest.mark.parametrize("plain", [b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01", b"\0\0\0\x10", b"GET /"])
def test_what_begins_otherwise_has_none(plain: bytes) -> None:
    assert parse(plain) is None


@pytest.mark.parametrize(
    "bad",
    [
        b"PROXY TCP4 x y 1 2\r\n",
        b"PROXY TCP4 10.0.0.1\r\n",
        b"PROXY " + b"x" * 200,
        b"PROXY TCP4 1.1.1.1 1.1.1.1 99999 1\r\n",
        SIGNATURE + b"\x11\x11\x00\x0c",
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_a_prefix_that_makes_no_sense_is_refused(bad: bytes) -> None:
    with pytest.raises(WireError):
        parse(bad)


@given(st.binary(max_size=100))
def test_garbage_raises_a_wire_error_or_is_none(garbage: bytes) -> None:
    for start in (b"PROXY ", SIGNATURE):
        try:
            parse(start + garbage)
        except WireError:
            pass
