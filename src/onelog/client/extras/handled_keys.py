"""Which messages were handled already: the stores behind `idempotent`, in a database or in Redis.

A store has at most one row for a key. It says who handles the key, and until when that counts:

    owner = a token, until_ms = end of the lease      somebody is at it
    owner = "done",  until_ms = end of the memory     it was handled
    until_ms in the past, or no row                   free

In Redis the value of a key is its owner, and Redis itself lets it expire, by its own clock.

Invariant: of all that claim a free key at the same time, in whatever thread, process or machine,
one gets it; the database decides. For databases the time is that of the machines that claim, so
these should agree to within a small part of the lease.
"""

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Literal, Protocol, cast

from onelog.clock import Clock, SystemClock

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


class Claim(Enum):
    """The answer to somebody who wants to handle a key."""

    YOURS = "yours"
    DONE = "done"
    BUSY = "busy"


class HandledKeys(Protocol):
    """A store. Its methods may block, and may be called from many threads at a time."""

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """Take a key for the time of the lease, unless it is taken or was handled."""
        ...

    def finish(self, key: str, owner: str, keep_ms: int) -> None:
        """Remember that a key was handled, for this long."""
        ...

    def release(self, key: str, owner: str) -> None:
        """Give back a key that was not handled after all."""
        ...


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
        ...

    def commit(self) -> None:
        """Keep what was done."""
        ...

    def rollback(self) -> None:
        """Forget what was done."""
        ...

    def close(self) -> None:
        """The end."""
        ...


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
        cursor = cast(_Cursor, connection.cursor())
        try:
            self._execute(cursor, name, values)
            count = cursor.rowcount
        finally:
            cursor.close()
        connection.commit()
        return count

    def _owner(self, connection: DbConnection, name: str) -> object:
        cursor = cast(_Cursor, connection.cursor())
        try:
            self._execute(cursor, "select", (name,))
            row = cursor.fetchone()
        finally:
            cursor.close()
        connection.commit()
        return None if row is None else row[0]

    def _execute(self, cursor: _Cursor, name: str, values: tuple[str | int, ...]) -> None:
        if not values:
            cursor.execute(self._statements[name])
        elif self._paramstyle in ("named", "pyformat"):
            parameters = {f"p{number}": value for number, value in enumerate(values, 1)}
            cursor.execute(self._statements[name], parameters)
        else:
            cursor.execute(self._statements[name], values)

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
        ...


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
