"""Producers that begin transactions, end them, and are asked about them, in a world of tests."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from onelog.core.access import SELF
from onelog.core.membership.members import Client
from onelog.core.transactions.checkback import Check
from onelog.errors import OnelogError
from onelog.message import Appended, Message, NewMessage, encode_properties
from onelog.names import HALF_TOPIC, OP_HALF_TOPIC
from onelog.rocketmq.sent_properties import intent_of
from tests.core.world import World

GROUP = "payments"
HEARTBEAT_MS = 30_000


@dataclass
class Producers:
    """Every producer of a world; its questions are kept, and answered when a test wants to."""

    world: World
    asked: list[tuple[str, Check]] = field(default_factory=list)
    deaf: set[str] = field(default_factory=set)
    """Clients that nothing can be sent to now."""
    live: dict[str, str] = field(default_factory=dict)
    """Who is connected, and its group."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        """What a gateway does when the broker has started."""
        self.world.broker.transactions.ask_producer.append(self._ask)

    def _ask(self, client: Client, check: Check) -> bool:
        if client.client_id in self.deaf:
            return False
        self.asked.append((client.client_id, check))
        return True

    def join(self, client_id: str = "p1", group: str = GROUP) -> None:
        self.live[client_id] = group
        self._heartbeat()

    def _heartbeat(self) -> None:
        for client_id, group in self.live.items():
            self.world.broker.groups.heartbeat(SELF, Client(client_id, client_id), (), (group,))

    def advance(self, ms: int) -> None:
        """Let time pass for producers that send their heartbeats."""
        while ms > 0:
            self._heartbeat()
            self.world.advance(min(ms, HEARTBEAT_MS))
            ms -= HEARTBEAT_MS

    def leave(self, client_id: str = "p1") -> None:
        self.live.pop(client_id, None)
        self.world.broker.groups.channel_closed(client_id)

    def take_asked(self) -> list[tuple[str, Check]]:
        taken, self.asked[:] = list(self.asked), []
        return taken

    def message(self, body: bytes = b"x", queue_id: int = 0, **properties: str) -> NewMessage:
        given = {
            "TRAN_MSG": "true",
            "PGROUP": GROUP,
            "UNIQ_KEY": f"U{next(self._numbers)}",
            **properties,
        }
        return NewMessage(
            "orders",
            queue_id,
            body,
            encode_properties(given),
            sys_flag=4,
            born_ms=self.world.clock.now_ms(),
        )

    def begin(self, body: bytes = b"x", queue_id: int = 0, **properties: str) -> Appended:
        """A half message, stored and acknowledged in a tick of its own."""
        world = self.world
        message = self.message(body, queue_id, **properties)
        world.publish(message)
        world.end_tick()
        told = world.told.pop()
        assert told.error is None
        assert isinstance(told.appended, Appended)
        return told.appended

    def end(
        self,
        where: Appended | Check,
        commit: bool,
        *,
        group: str = GROUP,
        checked: bool = False,
        tick: bool = True,
    ) -> OnelogError | None:
        """Commit or roll back; the error with which that was refused after the tick, if any."""
        transactions = self.world.core.transactions
        half_offset = where.half_offset if isinstance(where, Check) else where.queue_offset
        call = transactions.roll_back
        if commit:
            call = partial(transactions.commit, becomes=self._becomes)
        call(group, half_offset, where.log_offset, self.world.on_stored, checked=checked)
        if not tick:
            return None
        self.world.end_tick()
        return self.world.told.pop().error

    def _becomes(self, message: NewMessage) -> NewMessage:
        intent = intent_of(message.properties, self.world.clock)
        return message if intent is None else self.world.core.publisher.postponed(message, intent)

    def commit(self, where: Appended | Check, *, checked: bool = False) -> None:
        assert self.end(where, True, checked=checked) is None

    def roll_back(self, where: Appended | Check, *, checked: bool = False) -> None:
        assert self.end(where, False, checked=checked) is None

    def restart(self) -> None:
        self.world.restart()
        self.live.clear()
        self.connect()

    def crash(self) -> None:
        self.world.crash()
        self.live.clear()
        self.connect()

    def halves(self) -> list[Message]:
        return self.world.messages(HALF_TOPIC)

    def operations(self) -> list[bytes]:
        return self.world.bodies(OP_HALF_TOPIC)

    def open_count(self) -> int:
        return len(self.world.core.transactions)
