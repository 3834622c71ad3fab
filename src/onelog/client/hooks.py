"""Hooks: functions that are called before and after every send and every call of a listener.

A hook is any object with the two methods of `SendHook` or of `ConsumeHook`, or both. The `before`
methods are called in the order in which the hooks were given, the `after` methods in the opposite
order. Both get the same context, so that `after` sees what `before` noted.

`before_send`, `after_send` and `transaction_ended` run on the client's event loop and must not
block. `before_consume` and `after_consume` run where the listener runs: in its thread, or in its
task. A hook for both must be safe to call from several threads.

Invariant: if a hook raises, that is logged and changes nothing else. A client without hooks pays
nothing for them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from onelog.client.connection.instance import Instance
from onelog.client.message import Message, Queue, Receipt, ReceivedMessage
from onelog.wire.remoting.trace import MessageKind, Outcome

log = logging.getLogger(__name__)

C = TypeVar("C")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class SendContext:
    """One send: of one message, or of a batch, which shares everything here."""

    group: str
    messages: Sequence[Message]
    kind: MessageKind = MessageKind.NORMAL
    properties: dict[str, str] = field(default_factory=dict)
    """What `before_send` puts here travels as properties of each of the messages."""
    started_ms: int = field(default_factory=now_ms)
    message_id: str = ""
    """Known before the send; of a batch, the ids of its messages between commas."""
    address: str = ""
    """The broker that was asked last, as host:port."""
    receipt: Receipt | None = None
    """After the send; None if it failed, or is one-way."""
    error: BaseException | None = None
    notes: dict[object, object] = field(default_factory=dict)
    """For hooks to keep something from `before` to `after`, under a key of their own."""


@dataclass(slots=True)
class ConsumeContext:
    """One call of a listener."""

    group: str
    queue: Queue
    messages: Sequence[ReceivedMessage]
    started_ms: int = field(default_factory=now_ms)
    outcome: Outcome = Outcome.SUCCESS
    """After the call."""
    error: BaseException | None = None
    """What the listener raised."""
    notes: dict[object, object] = field(default_factory=dict)
    """For hooks to keep something from `before` to `after`, under a key of their own."""

    @property
    def is_success(self) -> bool:
        """Whether the messages are done with."""
        return self.outcome is Outcome.SUCCESS


@dataclass(frozen=True, slots=True)
class TransactionContext:
    """The end of a transaction, as its producer is about to tell the broker."""

    group: str
    topic: str
    tags: str
    keys: str
    message_id: str
    transaction_id: str
    state: str
    """COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW, as RocketMQ writes them."""
    address: str
    from_check: bool
    """Whether the broker had asked."""


class SendHook(Protocol):
    """Called around every send of a producer."""

    def before_send(self, context: SendContext) -> None:
        """The message is about to be sent; once, however often the sending is retried."""

    def after_send(self, context: SendContext) -> None:
        """It was sent, or it failed."""


class ConsumeHook(Protocol):
    """Called around every call of a listener."""

    def before_consume(self, context: ConsumeContext) -> None:
        """The listener is about to be called."""

    def after_consume(self, context: ConsumeContext) -> None:
        """It returned or raised."""


@runtime_checkable
class TransactionHook(Protocol):
    """A `SendHook` that wants to know how transactions end, too."""

    def transaction_ended(self, context: TransactionContext) -> None:
        """The producer says how a transaction ended, or that it does not know."""


@runtime_checkable
class LivingHook(Protocol):
    """A hook that lives as long as the client it was given to."""

    async def start(self, instance: Instance) -> None:
        """The client starts; `instance` is its connections and routes."""

    async def close(self) -> None:
        """The client ends; its connections are still there."""


async def start_hooks(hooks: Iterable[object], instance: Instance) -> None:
    for hook in hooks:
        if isinstance(hook, LivingHook):
            await hook.start(instance)


async def close_hooks(hooks: Iterable[object]) -> None:
    for hook in hooks:
        if isinstance(hook, LivingHook):
            try:
                await hook.close()
            except Exception:
                log.exception("hook %r failed to close", hook)


def before_send(hooks: Sequence[SendHook], context: SendContext) -> None:
    _call((hook.before_send for hook in hooks), context)


def after_send(hooks: Sequence[SendHook], context: SendContext) -> None:
    _call((hook.after_send for hook in reversed(hooks)), context)


def before_consume(hooks: Sequence[ConsumeHook], context: ConsumeContext) -> None:
    _call((hook.before_consume for hook in hooks), context)


def after_consume(hooks: Sequence[ConsumeHook], context: ConsumeContext) -> None:
    _call((hook.after_consume for hook in reversed(hooks)), context)


def transaction_ended(hooks: Iterable[object], context: TransactionContext) -> None:
    wanted = (each.transaction_ended for each in hooks if isinstance(each, TransactionHook))
    _call(wanted, context)


def _call(hooks: Iterable[Callable[[C], None]], context: C) -> None:
    for hook in hooks:
        try:
            hook(context)
        except Exception:
            log.exception("hook %r failed", hook)
