"""Whether a peer is on this machine, as far as addresses tell.

A peer that calls one of the machine's own addresses from the machine itself has that same address,
unless it chose another one on purpose; then it counts as another machine. What comes through a
tunnel or a proxy on this machine counts as being on it.
"""

import ipaddress


def is_here(remote: str, local: str) -> bool:
    """Whether the peer at `remote`, who called our address `local`, is on this machine."""
    address = _parsed(remote)
    return address is not None and (address.is_loopback or address == _parsed(local))


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    # What an IPv4 peer looks like to a socket for both.
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
