"""Ports for servers that are told their port, or that come back on the one they had.

Whoever can, binds to port 0 and asks which one it got.
"""

import random
import socket

_STEP = 20
"""A broker also listens two below its port, and the next broker of `onelog up` ten above."""
_KEPT_MAX = 50
"""Whoever has asked for so many since has long ended the server of the first."""

_kept: list[socket.socket] = []


def free_port(span: int = 13) -> int:
    """A port that is this process's own, with those around it, whether it listens there or not.

    It is below the ports that the system hands out to all who want any. The UDP port of the same
    number is kept as a sign for the other processes that run tests. `span` is how many ports from
    it on are wanted.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000, _STEP), 600):
        signs = []
        try:
            for slot in range(port, port + span, _STEP):
                signs.append(socket.socket(type=socket.SOCK_DGRAM))
                signs[-1].bind(("127.0.0.1", slot))
            if all(_is_free(near) for near in range(port - 2, port + span)):
                _kept.extend(signs)
                while len(_kept) > _KEPT_MAX:
                    _kept.pop(0).close()
                return port
        except OSError:
            pass
        for sign in signs:
            sign.close()
    raise AssertionError("found no free port")


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
