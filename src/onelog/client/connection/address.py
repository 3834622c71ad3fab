"""Addresses of nodes, as people and name servers write them: `host:port`, `[::1]:port`.

Invariant: an `Address` has a host and a port that a connection can be tried to.
"""

import re
from typing import NamedTuple

from onelog.errors import InvalidAddressError
from onelog.message import decode_host

_FORM = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s\[\]]+)):(\d{1,5})")


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_text(host: bytes) -> str:
    return str(Address(*decode_host(host)))


def parse_address(text: str) -> Address:
    """One address; `InvalidAddressError` if the text is none."""
    found = _FORM.fullmatch(text.strip())
    if found is None or not 0 < int(found.group(3)) <= 65_535:
        raise InvalidAddressError(f"{text!r} is no address: write host:port, as 127.0.0.1:9876")
    return Address(found.group(1) or found.group(2), int(found.group(3)))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Addresses between semicolons or commas; at least one, in their order, none twice."""
    parts = [part for part in re.split(r"[;,]", text) if part.strip()]
    if not parts:
        raise InvalidAddressError("no address given: write host:port, or several between ';'")
    return tuple(dict.fromkeys(map(parse_address, parts)))
