"""Ids that no two clients give twice, in the form of RocketMQ's Java client.

A unique id is 16 bytes in upper-case hex:

    4 bytes IPv4 address | 2 bytes process | 4 bytes of this run
    4 bytes ms since the month began | 2 bytes counter

Where Java has the hash of a class loader, there are random bytes here, drawn anew after a fork.
Tools read the time back out of the id (`traces`, `mqadmin`), so the month begins in local time, as
it does in Java. Invariant: ids of one process differ unless 65,536 are made in one millisecond.
"""

import datetime
import itertools
import os
import socket
import time


def local_ip() -> str:
    """The address of this machine that other machines see; the loopback's if there is none."""
    # To connect a datagram socket sends nothing: it only chooses a route, and so an address.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def client_id() -> str:
    """The id of a new client: address@process#time, as Java's."""
    return f"{_ip}@{os.getpid()}#{time.time_ns()}"


def unique_id(now_ms: int | None = None) -> str:
    """A new id for a message; `now_ms` saves a look at the clock."""
    if now_ms is None:
        now_ms = time.time_ns() // 1_000_000
    if now_ms != _stem_ms:
        _turn_to(now_ms)
    return f"{_stem}{next(_counter) & 0xFFFF:04X}"


def _turn_to(now_ms: int) -> None:
    """Work out what all ids of a millisecond begin with."""
    global _next_month_ms, _month_ms, _stem, _stem_ms
    if now_ms >= _next_month_ms:
        _month_ms, _next_month_ms = _month_around(now_ms)
    # It is negative if the clock was set back over the beginning of the month.
    _stem = f"{_prefix}{max(0, now_ms - _month_ms):08X}"
    _stem_ms = now_ms


def _month_around(now_ms: int) -> tuple[int, int]:
    now = datetime.datetime.fromtimestamp(now_ms / 1000).astimezone()
    begin = datetime.datetime(now.year, now.month, 1)  # noqa: DTZ001
    end = datetime.datetime(now.year + now.month // 12, now.month % 12 + 1, 1)  # noqa: DTZ001
    return round(begin.timestamp() * 1000), round(end.timestamp() * 1000)


def _new_prefix() -> str:
    address = socket.inet_aton(_ip)
    process = (os.getpid() & 0xFFFF).to_bytes(2, "big")
    return (address + process + os.urandom(4)).hex().upper()


def _renew() -> None:
    global _prefix, _counter, _stem_ms
    _prefix = _new_prefix()
    _counter = itertools.count()
    _stem_ms = -1


_ip = local_ip()
_prefix = _new_prefix()
_counter = itertools.count()
_month_ms = 0
_next_month_ms = 0
_stem = ""
_stem_ms = -1

os.register_at_fork(after_in_child=_renew)
