"""Listeners that do their work once for each message, although messages may be delivered again.

    @consumer.subscribe("orders")
    @idempotent(store="billing.sqlite", key=lambda message: message.keys[0])
    def bill(message): ...

A broker delivers at least once: a consumer that crashes, a rebalance, a producer that sends again
because an answer got lost, all lead to a second delivery. Before the listener is called, the
message's key is claimed in a store; what happens then:

- the key was handled: the listener is not called, and the message counts as consumed;
- the key is being handled, by another thread, process or machine: `MessageInProgressError`, so that
  the message comes again later; by then the other has finished, or failed;
- else the listener runs. When it returns, the key is marked as handled, and remembered for `keep`.
  When it raises, the key is free again, and the message is retried as always.

The key is the message's unique id unless `key` says otherwise; retries of a message, and sends that
the producer repeats, have the same id. Keys are kept apart by topic.

A store has at most one row for a key. It says who handles the key, and until when that counts:

    owner = a token, until_ms = end of the lease      somebody is at it
    owner = "done",  until_ms = end of the memory     it was handled
    until_ms in the past, or no row                   free

In Redis the value of a key is its owner, and Redis itself lets it expire, by its own clock.

Invariants: of all that claim a free key at the same time, in whatever thread, process or machine,
one gets it; the database decides. For databases the time is that of the machines that claim, so
these should agree to within a small part of the lease. The key of a process that dies while it
handles a message is free again after `lease`; give a lease longer than the listener ever takes, or
a second delivery may run beside it. No store can know how far the listener came: if the process
dies after its work and before the mark, the message is handled again. A listener that writes to a
database closes that gap by writing the key there, in the same transaction.
"""

import asyncio
import contextlib
import functools
import hashlib
import inspect
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Literal, Protocol, TypeVar, cast
from urllib.parse import quote

from onelog.client.consumer.listening import is_coroutine
from onelog.client.message import ReceivedMessage
from onelog.clock import Clock, SystemClock
from onelog.errors import MessageInProgressError
from onelog.message import property_value

DONE = "done"
CLEAN_EVERY = 1_000
"""Keys between two rounds that remove the rows nobody needs any more."""
SQLITE_BUSY_SECONDS = 30.0
SQLITE_PAUSE_SECONDS = 0.01
_READABLE_CHARACTERS = 180

ParamStyle = Literal["qmark", "numeric", "named", "format", "pyformat"]
_MARKS: dict[str, str] = {
    "qmark": "?",
    "numeric": ":{number}",
    "named": ":p{number}",
    "format": "%s",
    "pyformat": "%(p{number})s",
}

_DONE = DONE.encode()
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
"""Deletes a key only if it still is the caller's."""

LEASE = timedelta(minutes=20)
"""Longer than the 15 minutes after which a consumer gives up on a listener."""
KEEP = timedelta(days=7)
"""Longer than the three days that brokers keep messages for."""

Key = Callable[[ReceivedMessage], str]
F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

log = logging.getLogger(__name__)


class Claim(Enum):
    """The answer to somebody who wants to handle a key."""

    YOURS = "yours"
    DONE = "done"
    BUSY = "busy"


class HandledKeys(Protocol):
    """A store. Its methods may block, and may be called from many threads at a time."""

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """Take a key for the time of the lease, unless it is taken or was handled."""

    def finish(self, key: str, owner: str, keep_ms: int) -> None:
        """Remember that a key was handled, for this long."""

    def release(self, key: str, owner: str) -> None:
        """Give back a key that was not handled after all."""


class _Cursor(Protocol):
    """What is asked of a DB-API cursor."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, operation: str, parameters: object = ..., /) -> object: ...
    def fetchone(self) -> Sequence[object] | None: ...
    def close(self) -> None: ...


class DbConnection(Protocol):
    """What is asked of a DB-API connection."""

    def cursor(self) -> object:
        """For statements: an object with `execute`, `fetchone`, `rowcount` and `close`."""

    def commit(self) -> None:
        """Keep what was done."""

    def rollback(self) -> None:
        """Forget what was done."""

    def close(self) -> None:
        """The end."""


class DbApiStore:
    """Handled keys in a table of any database that Python can talk to.

    `connect` makes a connection (PEP 249) that is not in autocommit mode; there will be as many as
    threads that ask at the same time. `group` keeps the keys of one consumer group apart from those
    of others in the same table: give the group's name. `paramstyle` is that of the driver's module,
    and is looked up there unless given. The table is made if it does not exist.
    """

    def __init__(
        self,
        connect: Callable[[], DbConnection],
        *,
        group: str,
        paramstyle: ParamStyle | None = None,
        table: str = "onelog_handled",
        clock: Clock | None = None,
    ) -> None:
        self._connect = connect
        self._group = group
        self._paramstyle: str | None = paramstyle
        self._table = table
        self._clock = clock or SystemClock()
        self._pid = os.getpid()
        self._idle: LifoQueue[DbConnection] = LifoQueue()
        self._statements: dict[str, str] = {}
        self._finished = 0

    def __del__(self) -> None:
        if hasattr(self, "_idle") and self._pid == os.getpid():
            self.close()

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """Take a key for the time of the lease, unless it is taken or was handled."""
        now_ms = self._clock.now_ms()
        name = self._name(key)
        with self._connection() as connection:
            try:
                self._run(connection, "insert", name, owner, now_ms + lease_ms)
                return Claim.YOURS
            except Exception as error:
                # There is a row, most likely; each driver says so in its own way.
                connection.rollback()
                refused = error
            if self._run(connection, "take", owner, now_ms + lease_ms, name, now_ms):
                return Claim.YOURS
            found = self._owner(connection, name)
        if found is None:
            raise refused
        return Claim.DONE if found == DONE else Claim.BUSY

    def finish(self, key: str, owner: str, keep_ms: int) -> None:
        """Remember that a key was handled, for this long."""
        now_ms = self._clock.now_ms()
        name = self._name(key)
        with self._connection() as connection:
            if not self._run(connection, "set", DONE, now_ms + keep_ms, name):
                # The lease was over, and the row was removed.
                self._run(connection, "insert", name, DONE, now_ms + keep_ms)
            self._finished += 1
            if self._finished % CLEAN_EVERY == 0:
                self._run(connection, "clean", now_ms)

    def release(self, key: str, owner: str) -> None:
        """Give back a key that was not handled after all."""
        with self._connection() as connection:
            self._run(connection, "delete", self._name(key), owner)

    def close(self) -> None:
        """Close the connections that nobody uses now."""
        while not self._idle.empty():
            with contextlib.suppress(Exception):
                self._idle.get_nowait().close()

    # Inside.

    def _name(self, key: str) -> str:
        """The key as it is stored: cut to fit, and told from all others by its digest.

        Some databases think that `a` and `A` are the same; in a digest that does no harm.
        """
        text = f"{self._group}/{key}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{text[:_READABLE_CHARACTERS].encode('ascii', 'replace').decode()} {digest}"

    @contextlib.contextmanager
    def _connection(self) -> Iterator[DbConnection]:
        if self._pid != os.getpid():
            # The parent's connections stay the parent's.
            self._idle, self._pid = LifoQueue(), os.getpid()
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = self._connect()
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        try:
            yield connection
        except BaseException:
            # It may be the connection that is broken, and then the idle ones are as well.
            with contextlib.suppress(Exception):
                connection.close()
            self.close()
            raise
        self._idle.put(connection)

    def _prepare(self, connection: DbConnection) -> None:
        if not self._statements:
            self._statements = self._written_for(connection)
        try:
            self._owner(connection, "")
        except Exception:
            connection.rollback()
            try:
                for statement in ("create", "create_index"):
                    self._run(connection, statement)
            except Exception:
                # Somebody else may have made it in this moment; if not, this says why.
                connection.rollback()
                self._owner(connection, "")

    def _run(self, connection: DbConnection, name: str, *values: str | int) -> int:
        return self._execute(connection, name, values, lambda cursor: cursor.rowcount)

    def _owner(self, connection: DbConnection, name: str) -> object:
        row = self._execute(connection, "select", (name,), lambda cursor: cursor.fetchone())
        return None if row is None else row[0]

    def _execute(
        self,
        connection: DbConnection,
        name: str,
        values: tuple[str | int, ...],
        read: Callable[[_Cursor], T],
    ) -> T:
        parameters: object = values
        if self._paramstyle in ("named", "pyformat"):
            parameters = {f"p{number}": value for number, value in enumerate(values, 1)}
        with contextlib.closing(cast(_Cursor, connection.cursor())) as cursor:
            cursor.execute(self._statements[name], *([parameters] if values else ()))
            found = read(cursor)
        connection.commit()
        return found

    def _written_for(self, connection: DbConnection) -> dict[str, str]:
        """The statements, with parameters marked as the driver wants them."""
        if self._paramstyle is None:
            driver = sys.modules[type(connection).__module__.partition(".")[0]]
            self._paramstyle = str(getattr(driver, "paramstyle", "qmark"))
        mark = _MARKS[self._paramstyle]
        marks = [mark.format(number=number) for number in range(1, 5)]
        return {name: text.format(*marks, table=self._table) for name, text in _STATEMENTS.items()}


_STATEMENTS = {
    "create": "CREATE TABLE {table} (handled_key VARCHAR(255) NOT NULL PRIMARY KEY, "
    "owner VARCHAR(64) NOT NULL, until_ms BIGINT NOT NULL)",
    "create_index": "CREATE INDEX {table}_until ON {table} (until_ms)",
    "select": "SELECT owner FROM {table} WHERE handled_key = {0}",
    "insert": "INSERT INTO {table} (handled_key, owner, until_ms) VALUES ({0}, {1}, {2})",
    "take": "UPDATE {table} SET owner = {0}, until_ms = {1} "
    "WHERE handled_key = {2} AND until_ms <= {3}",
    "set": "UPDATE {table} SET owner = {0}, until_ms = {1} WHERE handled_key = {2}",
    "delete": "DELETE FROM {table} WHERE handled_key = {0} AND owner = {1}",
    "clean": "DELETE FROM {table} WHERE until_ms <= {0}",
}


class SqliteStore(DbApiStore):
    """Handled keys in one SQLite file, which several processes of one machine may share.

    A process that dies loses nothing; a machine that loses power may forget the last moments, and
    then those messages are handled once more.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, group: str = "", clock: Clock | None = None
    ) -> None:
        self.path = Path(path).expanduser()
        super().__init__(self._open, group=group, paramstyle="qmark", clock=clock)

    def _open(self) -> DbConnection:
        import sqlite3  # Here and not above: few need it.

        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, timeout=SQLITE_BUSY_SECONDS, check_same_thread=False
        )
        # For this change SQLite does not wait by itself for others that open the file just now.
        deadline = time.monotonic() + SQLITE_BUSY_SECONDS
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    connection.close()
                    raise
                time.sleep(SQLITE_PAUSE_SECONDS)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


class RedisClient(Protocol):
    """What is asked of a client; `redis.Redis` is one."""

    def execute_command(self, *args: str | int) -> object:
        """Send a command and return its answer; texts as bytes or str."""


class RedisStore:
    """Handled keys in Redis. `client` is a `redis.Redis`, or a URL such as redis://host:6379/0.

    `group` keeps the keys of one consumer group apart from those of others: give the group's name.
    """

    def __init__(
        self, client: RedisClient | str, *, group: str, prefix: str = "onelog:handled:"
    ) -> None:
        self._client = _connected(client) if isinstance(client, str) else client
        self._prefix = f"{prefix}{group}/"

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """Take a key for the time of the lease, unless it is taken or was handled."""
        name = self._prefix + key
        if self._client.execute_command("SET", name, owner, "NX", "PX", lease_ms) is not None:
            return Claim.YOURS
        found = self._client.execute_command("GET", name)
        # None: it expired in between. Then it is free, and the next delivery gets it.
        return Claim.DONE if found in (_DONE, DONE) else Claim.BUSY

    def finish(self, key: str, owner: str, keep_ms: int) -> None:
        """Remember that a key was handled, for this long."""
        self._client.execute_command("SET", self._prefix + key, DONE, "PX", keep_ms)

    def release(self, key: str, owner: str) -> None:
        """Give back a key that was not handled after all."""
        self._client.execute_command("EVAL", _RELEASE, 1, self._prefix + key, owner)


def _connected(url: str) -> RedisClient:
    try:
        import redis
    except ImportError:
        raise ImportError(
            "RedisStore needs the package redis: pip install 'onelog[redis]'"
        ) from None
    client: RedisClient = redis.Redis.from_url(url)
    return client


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
            return _once(listener, _Once(listener, lambda _: kept_in, key, _ms(lease), _ms(keep)))
        return for_group("", listener)

    def for_group(group: str, listener: F) -> F:
        store_of = _file_per_topic(group, _name_of(listener))
        called = _once(listener, _Once(listener, store_of, key, _ms(lease), _ms(keep)))
        # A consumer that takes the listener says for which group it does.
        called.for_group = lambda group: for_group(group, listener)  # type: ignore[attr-defined]
        return called

    return decorate


def _once(listener: F, once: "_Once") -> F:
    """The listener as its consumer calls it."""
    called: Callable[..., object]
    if is_coroutine(listener):

        async def called(messages: ReceivedMessage | Sequence[ReceivedMessage]) -> object:
            return await once.run_async(messages)

    else:

        def called(messages: ReceivedMessage | Sequence[ReceivedMessage]) -> object:
            return once.run(messages)

    return cast(F, functools.wraps(listener)(called))


def _file_per_topic(group: str, listener: str) -> Callable[[str], HandledKeys]:
    """The default: a SQLite file for each topic, of one group and one listener."""

    @functools.cache
    def store_of(topic: str) -> SqliteStore:
        # A listener that is called by hand has no group.
        names = (group or "-", topic, f"{listener}.sqlite")
        return SqliteStore(Path("~/.onelog/handled", *(quote(name, safe="%|") for name in names)))

    return store_of


@dataclass(slots=True, eq=False)
class _Deliveries:
    """What one call of a listener brought: which of its messages are to be handled now."""

    claimed: dict[str, ReceivedMessage] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)

    def check(self) -> None:
        if self.busy:
            raise MessageInProgressError(
                f"another delivery of {', '.join(self.busy)} is being handled: to be tried later"
            )


@dataclass(eq=False)
class _Once:
    """A listener that handles each key once."""

    _listener: Callable[..., object]
    _store_of: Callable[[str], HandledKeys]
    """By topic."""
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
                claim = self._store_of(message.topic).claim(key, owner, self._lease_ms)
                if claim is Claim.YOURS:
                    mine.claimed[key] = message
                elif claim is Claim.BUSY:
                    mine.busy.append(key)
        except BaseException:
            self._release(mine, owner)
            raise
        return mine

    def _finish(self, mine: _Deliveries, owner: str) -> None:
        for key, message in mine.claimed.items():
            try:
                self._store_of(message.topic).finish(key, owner, self._keep_ms)
            except Exception:
                # The work is done; saying that it failed would have it done again.
                log.exception("%s was handled, but that could not be noted", key)

    def _release(self, mine: _Deliveries, owner: str) -> None:
        for key, message in mine.claimed.items():
            try:
                self._store_of(message.topic).release(key, owner)
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
