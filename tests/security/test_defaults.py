"""Safe by default: without users nothing is served to other machines, on no port.

Other machines are played by a load balancer's prefix that names one.
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from onelog.config import Value
from onelog.core.users import logins
from onelog.server import BrokerServer
from onelog.wire.amqp.frame import method_frame
from onelog.wire.amqp.methods import ENCODERS
from onelog.wire.grpc.http2 import PREFACE
from onelog.wire.mqtt.packets import Connect, encode_connect
from tests.gateways.remoting.live import broker
from tests.security.secrets import ADMIN, PORTS, people

ELSEWHERE = b"PROXY TCP4 198.51.100.7 127.0.0.1 40000 1\r\n"
SETTINGS: dict[str, Value] = {**PORTS, "net__proxy_protocol": True}
REQUEST = (
    b'{"code":105,"extFields":{"topic":"t"},"flag":0,"language":"JAVA","opaque":1,'
    b'"serializeTypeCurrentRPC":"JSON","version":513}'
)
HELLO = {
    "broker": struct.pack(">ii", 4 + len(REQUEST), len(REQUEST)) + REQUEST,
    "kafka": b"\0\0\0\x0d\0\x12\0\0\0\0\0\x01\0\x03raw",
    "http": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "amqp": b"AMQP\0\0\x09\x01",
    "stomp": b"CONNECT\naccept-version:1.2\nhost:/\n\n\0",
    "mqtt": encode_connect(Connect(4, "c", True, 0, None)),
    "grpc": PREFACE + b"\0\0\0\4\0\0\0\0\0",
}
"""What a client of each protocol says first, and is answered."""


async def heard(server: BrokerServer, section: str, said: bytes, prefix: bytes = b"") -> bytes:
    """What the broker says to that: nothing, if it closes the connection."""
    port = getattr(server.config, section).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(prefix + said)
            return await asyncio.wait_for(reader.read(1 << 16), 20)
        return b""
    finally:
        writer.close()


async def test_without_users_only_this_machine_is_served(tmp_path: Path) -> None:
    async with broker(tmp_path, **SETTINGS) as server:
        for section, said in HELLO.items():
            assert await heard(server, section, said), section
            assert await heard(server, section, said, ELSEWHERE) == b"", section


async def test_with_users_others_are_served_and_have_to_log_in(tmp_path: Path) -> None:
    async with broker(tmp_path, **SETTINGS) as server:
        people(server)
        for section, said in HELLO.items():
            assert await heard(server, section, said, ELSEWHERE), section


async def test_anonymous_says_that_others_are_served(tmp_path: Path) -> None:
    async with broker(tmp_path, **SETTINGS, security__anonymous=True) as server:
        for section, said in HELLO.items():
            assert await heard(server, section, said, ELSEWHERE), section


@pytest.mark.parametrize(("prefix", "word"), [(b"", b""), (ELSEWHERE, b"ACCESS_REFUSED")])
async def test_guest_is_from_this_machine(tmp_path: Path, prefix: bytes, word: bytes) -> None:
    async with broker(tmp_path, **SETTINGS, security__anonymous=True) as server:
        port = server.config.amqp.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(prefix + HELLO["amqp"])
        await reader.read(1 << 16)
        about = {"capabilities": {"authentication_failure_close": True}}
        start = ENCODERS["connection.start-ok"](about, "PLAIN", b"\0guest\0guest", "en_US")
        writer.write(method_frame(0, start))
        answer = await asyncio.wait_for(reader.read(1 << 16), 20)
        assert word in answer
        assert bool(word) == (b"ACCESS_REFUSED" in answer)
        writer.close()


GUESSES = {
    "http": b"GET /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic YW5uOng=\r\n\r\n",
    "stomp": b"CONNECT\naccept-version:1.2\nhost:/\nlogin:ann\npasscode:x\n\n\0",
    "mqtt": encode_connect(Connect(4, "c", True, 0, None, "ann", b"x")),
}


@pytest.mark.parametrize("section", GUESSES)
async def test_failed_logins_are_counted_and_slowed(tmp_path: Path, section: str) -> None:
    async with broker(tmp_path, **SETTINGS) as server:
        people(server)
        waits: list[int] = []
        of_broker = server.broker.users.logins
        schedule = of_broker._runtime.schedule

        def noted(wait_ms: int, call: Callable[[], None]) -> None:
            waits.append(wait_ms)
            schedule(0, call)

        of_broker._runtime = replace(of_broker._runtime, schedule=noted)
        for number in range(1, 8):
            assert await heard(server, section, GUESSES[section])
            assert server.broker.users.logins.failed == number
        assert waits == [min(logins.SLOW_MS << each, logins.SLOWEST_MS) for each in range(7)]
        assert ADMIN[0] == "ann"
