"""Addresses are read as people write them, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client.connection.address import Address, parse_address, parse_addresses
from onelog.errors import InvalidAddressError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        (" broker-1.example.org:1 ", "broker-1.example.org", 1),
        ("[::1]:65535", "::1", 65535),
        ("::1:10911", "::1", 10911),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)


@given(st.ip_addresses().map(str), st.integers(1, 65535))
def test_what_is_shown_is_read_as_the_same(host: str, port: int) -> None:
    assert parse_address(str(Address(host, port))) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", "localhost", ":9876", "localhost:", "a:b", "a:0", "a:65536", "a b:1", "[::1]", "[]:1"],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidAddressError, match="write host:port"):
        parse_address(text)


def test_lists_are_between_semicolons_or_commas_and_name_nobody_twice() -> None:
    found = parse_addresses("a:1;b:2, a:1 ;;c:3;")
    assert found == (("a", 1), ("b", 2), ("c", 3))
    with pytest.raises(InvalidAddressError, match="no address given"):
        parse_addresses(" ; ")
