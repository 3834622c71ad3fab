"""Listeners: what users write to consume messages, and the one way in which they are called.

A listener gets one message, or with `batch_size` over 1 a list of messages of one topic. When it
returns, they are consumed; when it raises, they come again later. What it returns does not matter.

Invariant: whatever the hooks do, a listener is called once per attempt, and what it raises is what
comes out of the call.
"""

import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from onelog.client.hooks import ConsumeContext, ConsumeHook, after_consume, before_consume
from onelog.client.message import ReceivedMessage
from onelog.rocketmq.properties import LEVELS_SECONDS
from onelog.wire.remoting.trace import Outcome

Listener = Callable[[ReceivedMessage], object]
BatchListener = Callable[[list[ReceivedMessage]], object]
AnyListener = Listener | BatchListener
L = TypeVar("L", bound=AnyListener)
"""A listener; decorating one gives it back as it was."""

Call = Callable[[Any], object]
"""A listener with its hooks around it; it is given a message, or a list of them."""


class RetryLater(Exception):  # noqa: N818  (it asks for something, and need not be a mistake)
    """Raised by a listener that wants a message again, without a traceback in the log.

    `delay_level` is one of RocketMQ's (1 is a second, 2 five seconds, ... 18 two hours); 0 leaves
    the delay to the number of attempts, and -1 makes the message a dead letter at once.
    """

    def __init__(self, reason: str = "", *, delay_level: int = 0) -> None:
        super().__init__(reason)
        self.delay_level = delay_level


def level_seconds(level: int) -> int:
    """What one of RocketMQ's delay levels means, from 1 on."""
    return LEVELS_SECONDS[min(level, len(LEVELS_SECONDS)) - 1]


class NobodyListensError(LookupError):
    """A message, of a retry topic usually, whose own topic is not subscribed to (any more)."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A listener, ready to be called."""

    call: Call
    is_coroutine: bool
    """Whether `call` gives something that must be awaited, always."""
    batch_size: int


def is_coroutine(listener: AnyListener) -> bool:
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004  (its __call__ may be the coroutine)
    )


def listening(
    listener: AnyListener,
    group: str,
    batch_size: int,
    hooks: Sequence[ConsumeHook],
    timeout_ms: int,
) -> Listening:
    """A listener with its hooks; without hooks nothing is put around it."""
    if (for_group := getattr(listener, "for_group", None)) is not None:
        listener = for_group(group)  # See `idempotent`.
    waits = is_coroutine(listener)
    call: Call = listener
    if batch_size > 1:
        # The batch is still needed when the listener has done to its list what it likes.
        def call(batch: list[ReceivedMessage]) -> object:
            return listener(list(batch))  # type: ignore[arg-type]

    if hooks:
        call = _Hooked(call, group, tuple(hooks), timeout_ms).call
    return Listening(call, waits, batch_size)


@dataclass(frozen=True, slots=True)
class _Hooked:
    """A listener between its hooks."""

    _listener: Call
    _group: str
    _hooks: tuple[ConsumeHook, ...]
    _timeout_ms: int

    def call(self, given: ReceivedMessage | list[ReceivedMessage]) -> object:
        """Call a listener; if it gives something to wait for, so does this."""
        context = self._before(given)
        try:
            result = self._listener(given)
            if inspect.isawaitable(result):
                return self._wait(result, context)
        except BaseException as error:
            self._after(context, error)
            raise
        self._after(context, None)
        return None

    async def _wait(self, result: Awaitable[object], context: ConsumeContext) -> None:
        try:
            await result
        except BaseException as error:
            self._after(context, error)
            raise
        self._after(context, None)

    def _before(self, given: ReceivedMessage | list[ReceivedMessage]) -> ConsumeContext:
        messages = given if isinstance(given, list) else [given]
        context = ConsumeContext(self._group, messages[0].queue, messages)
        before_consume(self._hooks, context)
        return context

    def _after(self, context: ConsumeContext, error: BaseException | None) -> None:
        context.error = error
        if error is not None:
            later = isinstance(error, RetryLater)
            context.outcome = Outcome.FAILED if later else Outcome.EXCEPTION
        elif time.time_ns() // 1_000_000 - context.started_ms > self._timeout_ms:
            context.outcome = Outcome.TIME_OUT
        after_consume(self._hooks, context)
