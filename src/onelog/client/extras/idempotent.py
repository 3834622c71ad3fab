"""Listeners that do their work once for each message, although messages may be delivered again.

    @consumer.subscribe("orders")
    @idempotent(store="billing.sqlite", key=lambda message: message.keys[0])
    def bill(message): ...

A broker delivers at least once: a consumer that crashes, a rebalance, a producer that sends again
because an answer got lost, all lead to a second delivery. Before the listener is called, the
message's key is claimed in a store; what happens then:

- the key was handled: the listener is not called, and the message counts as consumed;
- the key is being handled, by another thread, process or machine: `MessageInProgressError`, so
  that the message comes again later; by then the other has finished, or failed;
- else the listener runs. When it returns, the key is marked as handled, and remembered for `keep`.
  When it raises, the key is free again, and the message is retried as always.

Invariant: of two deliveries at the same time exactly one runs. The key of a process that dies while
it handles a message is free again after `lease`; give a lease longer than the listener ever takes,
or a second delivery may run beside it. What no store can know is how far the listener came: if the
process dies after its work and before the mark, the message is handled again. A listener that
writes to a database closes that gap by writing the key there, in the same transaction.

The key is the message's unique id unless `key` says otherwise; retries of a message, and sends that
the producer repeats, have the same id. Keys are kept apart by topic.
"""

import asyncio
import functools
import inspect
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import quote

from onelog.client.extras.handled_keys import Claim, HandledKeys, SqliteStore
from onelog.client.message import ReceivedMessage
from onelog.errors import MessageInProgressError
from onelog.message import property_value

LEASE = timedelta(minutes=20)
"""Longer than the 15 minutes after which a consumer gives up on a listener."""
KEEP = timedelta(days=7)
"""Longer than the three days that brokers keep messages for."""

Key = Callable[[ReceivedMessage], str]
F = TypeVar("F", bound=Callable[..., object])

log = logging.getLogger(__name__)


def message_id(message: ReceivedMessage) -> str:
    """What all deliveries of one message have in common."""
    properties = message.raw.properties
    return (
        property_value(properties, "UNIQ_KEY")
        or property_value(properties, "ORIGIN_MESSAGE_ID")
        or message.offset_id
    )


def idempotent(
    store: HandledKeys | str | os.PathLike[str] | None = None,
    *,
    key: Key = message_id,
    lease: timedelta = LEASE,
    keep: timedelta = KEEP,
) -> Callable[[F], F]:
    """Make a listener, of single messages or of lists, with or without `async`, run once per key.

    `store` is a `SqliteStore` (or just the path of its file), a `RedisStore`, a `DbApiStore`, or
    anything with their three methods. By default it is a file for each topic in ~/.onelog/handled,
    named after group, topic and listener. Each consumer group needs a store, or a `group` of a
    store, of its own.
    """
    if callable(store):
        raise TypeError("write @idempotent(), with parentheses")
    if min(lease, keep) < timedelta(milliseconds=1):
        raise ValueError(f"lease ({lease}) and keep ({keep}) must be at least a millisecond")

    def decorate(listener: F) -> F:
        if store is not None:
            kept_in = SqliteStore(store) if isinstance(store, str | os.PathLike) else store
            return _once(listener, _Once(listener, kept_in, key, _ms(lease), _ms(keep)))
        return for_group("", listener)

    def for_group(group: str, listener: F) -> F:
        files = _FilePerTopic(group, _name_of(listener))
        called = _once(listener, _Once(listener, files, key, _ms(lease), _ms(keep)))
        # A consumer that takes the listener says for which group it does.
        called.for_group = lambda group: for_group(group, listener)  # type: ignore[attr-defined]
        return called

    return decorate


def _once(listener: F, once: "_Once") -> F:
    """The listener as its consumer calls it."""
    is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        type(listener).__call__
    )
    called: Callable[..., object]
    if is_async:

        async def called(messages: ReceivedMessage | Sequence[ReceivedMessage]) -> object:
            return await once.run_async(messages)

    else:

        def called(messages: ReceivedMessage | Sequence[ReceivedMessage]) -> object:
            return once.run(messages)

    return cast(F, functools.wraps(listener)(called))


class _FilePerTopic:
    """The default store: a SQLite file for each topic, of one group and one listener."""

    def __init__(self, group: str, listener: str) -> None:
        self._group = group
        self._listener = listener
        self._stores: dict[str, SqliteStore] = {}
        self._lock = threading.Lock()

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """See `HandledKeys`."""
        return self._of(key).claim(key, owner, lease_ms)

    def finish(self, key: str, owner: str, keep_ms: int) -> None:
        """See `HandledKeys`."""
        self._of(key).finish(key, owner, keep_ms)

    def release(self, key: str, owner: str) -> None:
        """See `HandledKeys`."""
        self._of(key).release(key, owner)

    def _of(self, key: str) -> SqliteStore:
        topic = key.partition("/")[0]
        with self._lock:
            store = self._stores.get(topic)
            if store is None:
                # A listener that is called by hand has no group.
                names = (self._group or "-", topic, f"{self._listener}.sqlite")
                path = Path("~/.onelog/handled", *(quote(name, safe="%|") for name in names))
                store = self._stores[topic] = SqliteStore(path)
        return store


class _Deliveries:
    """What one call of a listener brought: which of its messages are to be handled now."""

    def __init__(self) -> None:
        self.claimed: dict[str, ReceivedMessage] = {}
        self.busy: list[str] = []

    def check(self) -> None:
        if self.busy:
            raise MessageInProgressError(
                f"another delivery of {', '.join(self.busy)} is being handled: to be tried later"
            )


@dataclass(eq=False)
class _Once:
    """A listener that handles each key once."""

    _listener: Callable[..., object]
    _store: HandledKeys
    _key: Key
    _lease_ms: int
    _keep_ms: int

    def run(self, given: ReceivedMessage | Sequence[ReceivedMessage]) -> object:
        owner = uuid.uuid4().hex
        mine = self._claim(given, owner)
        result = None
        if mine.claimed:
            try:
                result = self._listener(_like(given, mine))
            except BaseException:
                self._release(mine, owner)
                raise
            self._finish(mine, owner)
        mine.check()
        return result

    async def run_async(self, given: ReceivedMessage | Sequence[ReceivedMessage]) -> object:
        owner = uuid.uuid4().hex
        mine = await asyncio.to_thread(self._claim, given, owner)
        result = None
        if mine.claimed:
            try:
                result = await self._listener(_like(given, mine))  # type: ignore[misc]
            except BaseException:
                await asyncio.to_thread(self._release, mine, owner)
                raise
            await asyncio.to_thread(self._finish, mine, owner)
        mine.check()
        return result

    def _claim(self, given: ReceivedMessage | Sequence[ReceivedMessage], owner: str) -> _Deliveries:
        mine = _Deliveries()
        messages = [given] if isinstance(given, ReceivedMessage) else given
        try:
            for message in messages:
                key = self._key_of(message)
                if key in mine.claimed:
                    continue  # Twice in one list: once is enough.
                claim = self._store.claim(key, owner, self._lease_ms)
                if claim is Claim.YOURS:
                    mine.claimed[key] = message
                elif claim is Claim.BUSY:
                    mine.busy.append(key)
        except BaseException:
            self._release(mine, owner)
            raise
        return mine

    def _finish(self, mine: _Deliveries, owner: str) -> None:
        for key in mine.claimed:
            try:
                self._store.finish(key, owner, self._keep_ms)
            except Exception:
                # The work is done; saying that it failed would have it done again.
                log.exception("%s was handled, but that could not be noted", key)

    def _release(self, mine: _Deliveries, owner: str) -> None:
        for key in mine.claimed:
            try:
                self._store.release(key, owner)
            except Exception:
                log.exception("%s was not handled, and stays taken until its lease ends", key)

    def _key_of(self, message: ReceivedMessage) -> str:
        key = self._key(message)
        if not isinstance(key, str) or not key:
            raise ValueError(f"the key of {message!r} must be a text with something in it: {key!r}")
        return f"{message.topic}/{key}"


def _like(
    given: ReceivedMessage | Sequence[ReceivedMessage], mine: _Deliveries
) -> ReceivedMessage | list[ReceivedMessage]:
    return given if isinstance(given, ReceivedMessage) else list(mine.claimed.values())


def _ms(duration: timedelta) -> int:
    return int(duration / timedelta(milliseconds=1))


def _name_of(listener: Callable[..., object]) -> str:
    """A name for the listener's own file: its module and its name in it."""
    module = getattr(listener, "__module__", "")
    if module == "__main__":
        module = Path(inspect.getfile(listener)).stem
    name = f"{module}.{getattr(listener, '__qualname__', type(listener).__qualname__)}"
    return name.replace("<locals>.", "").replace("<", "").replace(">", "").replace("/", "_")
