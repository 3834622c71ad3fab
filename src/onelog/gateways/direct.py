"""The gateway without a protocol: clients on the broker's own event loop call it.

It takes plain messages and hands them to plain consumers, in the same breath: a message that
follows what a consumer has is given to it as the value it came as, and is not read back from the
log. Everything else, it declines (see `net.line`), and the requests of a real protocol do it.

Invariant: a message is in the log before anybody gets it. Of a queue, a follower gets every message
once and in order; when it cannot (another gateway wrote, somebody moved its group), it is told to
pull, and following ends.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from isal.isal_zlib import crc32

from onelog.core.access import SELF, Principal
from onelog.core.broker import Broker
from onelog.core.durable.waiting import Wait
from onelog.errors import NotPermittedError
from onelog.message import RECORD_CRC, Appended, Message, NewMessage, encode_host
from onelog.net.line import Arrived
from onelog.rocketmq.sent_properties import NEEDLES

LOOK_MS = 1_000
"""How long a follower waits at a time."""
_CRC_MASK = 0x7FFFFFFF
_DECLINED = ("INNER_", *(needle.decode() for needle in NEEDLES))
"""How the names of properties begin that make a message more than a plain one."""

log = logging.getLogger(__name__)


class Host(Protocol):
    """What the broker says about itself in every message."""

    store_host: bytes
    added_properties: bytes
    id_prefix: str


class Direct:
    """All direct lines of one broker."""

    def __init__(
        self, broker: Broker, host: Host, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self.broker = broker
        self.host = host
        self.followers: dict[tuple[str, int], list[WaitingConsumer]] = {}
        self._call_soon = call_soon
        self._stored: list[NewMessage] = []
        self._appended: list[Appended] = []
        self._handed: list[tuple[WaitingConsumer, int]] = []
        end = self._end_following
        broker.topics.on_change.append(lambda topic, _: end(topic, None))
        broker.groups.on_change.append(lambda group, _: end(None, group))
        broker.cursors.on_move.append(lambda group, topic, _: end(topic, group))

    def line(self, address: tuple[str, int]) -> "DirectLine":
        """A line for a client at this address."""
        principal = Principal("", "direct", f"{address[0]}:{address[1]}")
        return DirectLine(self, encode_host(*address), principal)

    def stored(self, message: NewMessage, appended: Appended) -> None:
        """A message is in the log: hand it over first, and do the rest when that is done."""
        followers = self.followers.get((message[0], message[1]))
        if followers is not None:
            record = self._record(message, appended)
            for follower in tuple(followers):
                if follower.take(record):
                    self._handed.append((follower, appended[2]))
        if not self._stored:
            self._call_soon(self._account)
        self._stored.append(message)
        self._appended.append(appended)

    def _record(self, message: NewMessage, appended: Appended) -> Message:
        """What reading the message back would give."""
        topic, queue_id, body, properties, flag, sys_flag, born_ms, born_host, store_host, *_ = (
            message
        )
        log_offset, queue_offset, size = appended
        store_ms = self.broker.admin.last_append_ms
        return Message(
            topic,
            queue_id,
            queue_offset,
            log_offset,
            memoryview(body),
            properties,
            flag,
            sys_flag,
            born_ms,
            born_host,
            store_ms,
            store_host,
            0,
            0,
            crc32(body) & _CRC_MASK,
            size,
        )

    def _account(self) -> None:
        stored, self._stored = self._stored, []
        appended, self._appended = self._appended, []
        handed, self._handed = self._handed, []
        broker = self.broker
        for follower, size in handed:
            broker.cursors.followed(
                follower.group, follower.topic, follower.queue_id, follower.next_offset, size
            )
        broker.publish.account(stored, appended)

    def _end_following(self, topic: str | None, group: str | None) -> None:
        for followers in list(self.followers.values()):
            for follower in list(followers):
                if topic in (None, follower.topic) and group in (None, follower.group):
                    follower.end()


class DirectLine:
    """The line of one client."""

    def __init__(self, direct: Direct, born_host: bytes, principal: Principal) -> None:
        self._direct = direct
        self.principal = principal
        self._born_host = born_host
        self._following: set[WaitingConsumer] = set()

    def send(
        self, topic: str, queue_id: int, body: bytes, properties: str, flag: int, born_ms: int
    ) -> tuple[str, int] | None:
        """Store a message: its offset id and its offset in the queue; None if declined."""
        if not body:
            return None
        for name in _DECLINED:
            if properties.find(name) >= 0:
                return None
        # What only the broker may set; most properties lack even the letter.
        if ("P" in properties and properties.find("POP_") >= 0) or (
            "#" in properties and properties.find(RECORD_CRC) >= 0
        ):
            return None
        direct = self._direct
        host = direct.host
        # What calling the class does, at half the price.
        message = tuple.__new__(
            NewMessage,
            (
                topic,
                queue_id,
                body,
                properties.encode() + host.added_properties,
                flag,
                0,
                born_ms,
                self._born_host,
                host.store_host,
                0,
                0,
                1,
                (),
            ),
        )
        try:
            appended = direct.broker.publish.send_now(self.principal, message)
        except NotPermittedError:
            return None  # A request of a real protocol says why.
        if appended is None:
            return None
        direct.stored(message, appended)
        return f"{host.id_prefix}{appended[0]:016X}", appended[1]

    def follow(
        self, group: str, topic: str, queue_id: int, offset: int, arrived: Arrived
    ) -> "WaitingConsumer | None":
        """Hand over the messages of a queue from `offset` on; None if one is there already."""
        direct, principal = self._direct, self.principal
        try:
            if not direct.broker.cursors.may_follow(principal, group, topic, queue_id, offset):
                return None
        except NotPermittedError:
            return None
        follower = WaitingConsumer(
            direct, principal, group, topic, queue_id, offset, arrived, self._following
        )
        return follower if follower.begin() else None

    def close(self) -> None:
        """The connection is gone: end all following."""
        for follower in list(self._following):
            follower.end()


@dataclass(slots=True, eq=False)
class WaitingConsumer:
    """A consumer that has everything of a queue, and waits for the next message."""

    _direct: Direct
    _principal: Principal
    group: str
    topic: str
    queue_id: int
    next_offset: int
    _arrived: Arrived
    _mates: "set[WaitingConsumer]"
    _wait: Wait | None = field(init=False, default=None)

    def begin(self) -> bool:
        """Begin; False if too many wait already."""
        if not self._watch():
            return False
        self._direct.followers.setdefault((self.topic, self.queue_id), []).append(self)
        self._mates.add(self)
        return True

    def _watch(self) -> bool:
        """Wait for what does not come through `Direct.stored`, and look around now and then."""
        wait = self._direct.broker.cursors.watch(
            self._principal, self.topic, self.queue_id, LOOK_MS, self._woken, self._is_behind
        )
        if wait is None:
            return False
        self._wait = wait
        return True

    def take(self, record: Message) -> bool:
        """Hand over a message; False if following had to end instead."""
        if record[2] != self.next_offset:
            self.end()
            return False
        self.next_offset += 1
        try:
            if not self._arrived(record):
                self.stop()
        except Exception:
            log.exception("a message of %s could not be handed over", self.topic)
            self.end()
        return True

    def stop(self) -> None:
        """Hand over nothing more."""
        if self._wait is None:
            return
        self._direct.broker.cursors.unwatch(self._wait)
        self._wait = None
        self._mates.discard(self)
        followers = self._direct.followers
        key = (self.topic, self.queue_id)
        followers[key].remove(self)
        if not followers[key]:
            del followers[key]

    def end(self) -> None:
        """Stop, and say so."""
        if self._wait is None:
            return
        self.stop()
        try:
            self._arrived(None)
        except Exception:
            log.exception("a follower of %s could not be sent away", self.topic)

    def _is_behind(self) -> bool:
        end = self._direct.broker.topics.max_offset(SELF, self.topic, self.queue_id)
        return end != self.next_offset

    def _woken(self, _: Wait, timed_out: bool) -> None:
        if not timed_out or not self._watch():
            self.end()
