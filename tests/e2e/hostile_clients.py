"""Clients that mean no good, and one among them that must not notice them."""

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from onelog.net.peer import Peer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.frame import encode_request
from onelog.wire.remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicTable,
)
from tests.gateways.remoting.live import Client, bodies
from tests.gateways.remoting.samples import CLIENT, GROUP, TOPIC

ANSWER_SECONDS_MAX = 30.0
SENDERS = 32


async def send_all(port: int, frames: Sequence[bytes], *, rude: bool) -> bytes:
    """Send them over a connection of their own, and return what came back until it was closed.

    A rude client does not wait for answers: it hangs up while they are being made.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            writer.write(b"".join(frames))
            if rude:
                await writer.drain()
                return b""
            writer.write_eof()
            return await reader.read()
    except ConnectionError:
        return b""
    except OSError as error:  # uvloop: the server had closed it before the end was sent.
        if error.errno != errno.ENOTCONN:
            raise
        return b""
    finally:
        writer.transport.abort() if rude else writer.close()


class Changed(Protocol):
    """Where changed frames come from."""

    def hello(self) -> bytes:
        """How a connection begins."""

    def frame(self) -> bytes:
        """The next of them."""


async def bombard(port: int, mutation: Changed, random: Random, count: int) -> int:
    """Send so many changed requests from several clients at a time.

    Returns how many connections got an answer before they were closed.
    """
    left = count
    answered = 0

    async def sender() -> None:
        nonlocal left, answered
        while left:
            # What follows a frame that is none is not read: most are the only one.
            burst = min(left, random.choice((1, 1, 1, 1, 5)))
            left -= burst
            frames = [mutation.hello(), *(mutation.frame() for _ in range(burst))]
            got = await send_all(port, frames, rude=random.random() < 0.1)
            answered += bool(got)

    async with asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(sender())
    return answered


@dataclass
class Witness:
    """A client that sends and reads its own messages, and remembers how long that took."""

    words: Client
    topic: str = "witness"
    count: int = 0
    slowest_ms: float = 0.0
    refused: list[str] = field(default_factory=list)

    async def step(self) -> None:
        """One message there and back; it must be the very one."""
        began = time.perf_counter()
        body = b"%d" % self.count
        sent = await self.words.send(self.topic, body)
        if sent.code != ResponseCode.SUCCESS:
            self.refused.append(f"{sent.code}: {sent.remark}")
            return
        found = await self.words.pull(self.topic, int(sent.ext["queueOffset"]))
        assert bodies(found) == [body], (found.code, found.remark)
        self.count += 1
        self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - began) * 1000)

    async def stay(self) -> None:
        """Be a live member of the sampled group."""
        await self.words.heartbeat(CLIENT, GROUP, TOPIC)

    async def watch(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.stay()
            await self.step()
            await asyncio.sleep(0.02)


class WitnessBroker(Witness):
    """The same for a name server: a broker that registers, and finds the way to itself."""

    async def stay(self) -> None:
        """Register again."""
        ext = {
            "brokerName": "witness",
            "brokerAddr": "192.0.2.9:10911",
            "clusterName": "witnesses",
            "haServerAddr": "192.0.2.9:10912",
            "brokerId": 0,
        }
        topics = TopicTable(
            data_version=DataVersion(counter=1, timestamp=7),
            topic_config_table={
                # One alone would be a change of what it has registered before.
                name: TopicConfig(topic_name=name)
                for name in (self.topic, "others")
            },
        )
        body = RegisterBrokerBody(topic_config_serialize_wrapper=topics)
        answer = await self.words.ask(RequestCode.REGISTER_BROKER, body.encode(), **ext)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def step(self) -> None:
        """The route must be there."""
        began = time.perf_counter()
        found = await self.words.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=self.topic)
        assert found.code == ResponseCode.SUCCESS, found.remark
        assert b"192.0.2.9:10911" in found.body
        self.count += 1
        self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - began) * 1000)


@contextlib.asynccontextmanager
async def witness(port: int, kind: type[Witness] = Witness) -> AsyncIterator[Witness]:
    """A witness that watches while the block lasts."""

    def refuse(peer: Peer, command: Command) -> None:
        peer.reply(command, ResponseCode.SYSTEM_ERROR, remark="the witness will not")

    peer = await Peer.connect("127.0.0.1", port, on_request=refuse)
    found = kind(Client(peer, []))
    await found.stay()
    watching = asyncio.create_task(found.watch())
    try:
        yield found
        if watching.done():
            await watching
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await found.step()
        assert not found.refused
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await peer.close()


async def topics_and_groups(words: Client) -> tuple[int, int]:
    """How many topics and groups the broker knows."""
    topics = await words.ask(RequestCode.GET_ALL_TOPIC_CONFIG, topicSeq=0, maxTopicNum=1)
    groups = await words.ask(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groupSeq=0, maxGroupNum=1
    )
    return int(topics.ext["totalTopicNum"]), int(groups.ext["totalGroupNum"])


class Crowd:
    """Connections that do nothing: half have said something once, the others never."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: list[socket.socket] = []

    async def grow(self, count: int) -> None:
        """So many more."""
        loop = asyncio.get_running_loop()
        question = b"".join(encode_request(RequestCode.GET_MAX_OFFSET, 1, {"topic": "t"}))
        for number in range(count):
            each = socket.socket()
            self._sockets.append(each)
            each.setblocking(False)
            await loop.sock_connect(each, ("127.0.0.1", self._port))
            if number % 2:
                await loop.sock_sendall(each, question)
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    assert await loop.sock_recv(each, 4096)

    async def still_served(self) -> int:
        """How many of them get an answer when they speak again."""
        loop = asyncio.get_running_loop()
        question = b"".join(encode_request(RequestCode.GET_MAX_OFFSET, 1, {"topic": "t"}))
        found = 0
        for each in self._sockets:
            await loop.sock_sendall(each, question)
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                found += bool(await loop.sock_recv(each, 4096))
        return found

    def leave(self) -> None:
        """All of them hang up."""
        while self._sockets:
            self._sockets.pop().close()


class Unfinished:
    """Connections that send nearly all of a large request each, and never the rest."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: list[socket.socket] = []

    async def send(self, count: int, size: int) -> None:
        """So many connections, with so many bytes each; one that is cut off meanwhile is fine."""
        loop = asyncio.get_running_loop()
        part = (16 << 20).to_bytes(4, "big") + bytes(size - 4)
        for _ in range(count):
            each = socket.socket()
            self._sockets.append(each)
            each.setblocking(False)
            await loop.sock_connect(each, ("127.0.0.1", self._port))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(each, part)

    def leave(self) -> None:
        """All of them hang up."""
        while self._sockets:
            self._sockets.pop().close()


class DeafConsumer:
    """A consumer that asks for messages on and on, and never reads an answer."""

    def __init__(self, port: int, topic: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)
        ext = {
            "consumerGroup": "deaf",
            "topic": topic,
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        self._request = b"".join(encode_request(RequestCode.PULL_MESSAGE, 1, ext))
        self.asked = 0

    async def ask_until_stuck(self) -> None:
        """Ask until the broker takes no more of it, or has cut it off."""
        while True:
            try:
                self._socket.send(self._request)
            except BlockingIOError:
                # Full, for now. If that lasts, the broker has stopped reading.
                await asyncio.sleep(0.3)
                try:
                    self._socket.send(self._request)
                except OSError:
                    return
            except OSError:
                return
            self.asked += 1
            if self.asked % 50 == 0:
                await asyncio.sleep(0)

    def close(self) -> None:
        """It hangs up."""
        self._socket.close()
