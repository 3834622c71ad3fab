"""Whether a peer is on this machine."""

import pytest

from onelog.net.connection import is_here


@pytest.mark.parametrize(
    ("remote", "local", "here"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.8.8.8", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("10.0.0.5", "10.0.0.5", True),
        ("::ffff:10.0.0.5", "10.0.0.5", True),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("10.0.0.5", "10.0.0.6", False),
        ("10.0.0.5", "127.0.0.1", False),
        ("fe80::2%eth0", "fe80::1%eth0", False),
        ("0.0.0.0", "127.0.0.1", False),
        ("localhost", "127.0.0.1", False),
        ("", "", False),
    ],
)
def test_a_peer_is_here_if_its_address_is_loopback_or_the_one_it_called(
    remote: str, local: str, here: bool
) -> None:
    assert is_here(remote, local) is here
