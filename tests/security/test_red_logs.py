"""The log: nobody writes a line of it by calling himself something."""

import asyncio
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import OnelogError
from onelog.logs import LOG_FORMAT, LineFormatter, Lines
from onelog.net.peer import Peer
from onelog.wire.remoting.codes import RequestCode
from tests.gateways.http.live import SECONDS, url
from tests.gateways.remoting.live import broker, client
from tests.gateways.stomp.live import Bare
from tests.security.secrets import PORTS, people

FORGED = "2026-01-01 00:00:00,000 WARNING onelog.forged: all is well"
EVIL = f"evil\r\n{FORGED}\x1b[2J\x1b]0;title\x07\u202e\x9b31m\x85{FORGED}\u2028"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a server writes to its log, all of it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter(LOG_FORMAT))
    logger = logging.getLogger("onelog")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(before)


def check(lines: io.StringIO, *, is_said: bool = True) -> None:
    """Nothing of it is a line of its own, or does anything to a terminal."""
    text = lines.getvalue()
    assert not [line for line in text.splitlines() if line.startswith(FORGED)]
    assert not set(text) & set("\x1b\x07\r\x9b\x85\u202e\u2028")
    assert ("onelog.forged" in text) == is_said


async def test_a_client_id_and_a_group_write_no_line(tmp_path: Path, lines: io.StringIO) -> None:
    async with broker(tmp_path) as server, client(server) as peer:
        await peer.heartbeat(EVIL, "group", "topic")
        await peer.heartbeat("client", EVIL, "topic")
        await peer.heartbeat("client", "group", EVIL)
    check(lines)


async def test_a_user_who_is_none_writes_no_line(tmp_path: Path, lines: io.StringIO) -> None:
    async with broker(tmp_path, **PORTS) as server:
        people(server)
        credentials = pika.PlainCredentials(EVIL, "x")
        place = pika.ConnectionParameters("127.0.0.1", server.config.amqp.port, "/", credentials)
        with pytest.raises(pika.exceptions.AMQPError):
            await asyncio.to_thread(pika.BlockingConnection, place)
    check(lines)


async def test_names_in_amqp_write_no_line(tmp_path: Path, lines: io.StringIO) -> None:
    def talk(port: int) -> None:
        place = pika.ConnectionParameters("127.0.0.1", port, "/")
        with pika.BlockingConnection(place) as connection:
            for ask_for in ("queue_delete", "exchange_delete", "queue_purge", "basic_get"):
                channel = connection.channel()
                try:
                    getattr(channel, ask_for)(EVIL)
                except pika.exceptions.AMQPError:
                    continue

    async with broker(tmp_path, **PORTS) as server:
        await asyncio.to_thread(talk, server.config.amqp.port)
    check(lines)


async def test_frames_and_paths_write_no_line(tmp_path: Path, lines: io.StringIO) -> None:
    async with broker(tmp_path, **PORTS) as server:
        with Bare(("127.0.0.1", server.config.stomp.port)) as bare:
            await asyncio.to_thread(bare.say, f"{EVIL}\n\n\0".encode())
            await asyncio.to_thread(bare.hear)
        async with httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as web:
            await web.get("/v1/topics/evil%0a" + FORGED.replace(" ", "%20"))
    check(lines, is_said="onelog.forged" in lines.getvalue())


async def test_a_setting_of_an_administrator_writes_no_line(
    tmp_path: Path, lines: io.StringIO
) -> None:
    async with broker(tmp_path) as server:
        peer = await Peer.connect("127.0.0.1", server.config.broker.port)
        name = EVIL.replace("\n", "\\n").replace("\r", "\\r")
        await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, f"{name}=1\n".encode(), 20_000)
        await peer.close()
        with pytest.raises(OnelogError):
            server.broker.topics.create(SELF, TopicConfig(EVIL, 1, 1))
    check(lines, is_said="onelog.forged" in lines.getvalue())


def test_an_error_that_says_what_a_peer_said_writes_no_line(lines: io.StringIO) -> None:
    log = logging.getLogger("onelog.test")
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        log.warning("it failed: %s", error)
        log.exception("it failed")
    check(lines)


def test_what_has_lines_of_our_own_keeps_them(lines: io.StringIO) -> None:
    log = logging.getLogger("onelog.test")
    log.warning("%s was held:%s", EVIL, Lines("\n  here\n  there"))
    log.warning("nothing is wrong: %s", "plain")
    check(lines)
    assert lines.getvalue().splitlines()[1:3] == ["  here", "  there"]
