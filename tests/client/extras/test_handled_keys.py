import multiprocessing
import os
import re
import sqlite3
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.client.extras import idempotent as handled_keys
from onelog.client.extras.idempotent import (
    Claim,
    DbApiStore,
    DbConnection,
    ParamStyle,
    SqliteStore,
)
from onelog.clock import ManualClock
from tests.client.handled_keys_contract import HOUR_MS, PROMISES, Subject

NUMBERED = {"numeric": r":(\d)", "named": r":p(\d)", "format": "%s", "pyformat": r"%\(p(\d)\)s"}


class Dialect:
    """SQLite with the parameters of another driver."""

    def __init__(self, path: Path, style: str) -> None:
        self._connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
        self._style = style

    def cursor(self) -> "DialectCursor":
        return DialectCursor(self._connection.cursor(), self._style)

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


class DialectCursor:
    def __init__(self, cursor: sqlite3.Cursor, style: str) -> None:
        self._cursor = cursor
        self._style = style
        self.fetchone = cursor.fetchone
        self.close = cursor.close

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def execute(self, operation: str, parameters: object = ()) -> None:
        if isinstance(parameters, dict):
            assert self._style in ("named", "pyformat")
            parameters = tuple(
                parameters[f"p{n}"] for n in re.findall(NUMBERED[self._style], operation)
            )
        assert isinstance(parameters, tuple)
        text = re.sub(NUMBERED.get(self._style, r"\?"), "?", operation)
        assert text.count("?") == len(parameters)
        self._cursor.execute(text, parameters)


def dialect(path: Path, style: ParamStyle) -> Callable[[], DbConnection]:
    return lambda: Dialect(path, style)


@pytest.fixture(params=["sqlite", "qmark", "numeric", "named", "format", "pyformat"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    clock = ManualClock()
    path = tmp_path / "handled.sqlite"
    style = request.param
    stores: list[DbApiStore] = []
    for group in ("one", "other"):
        if style == "sqlite":
            stores.append(SqliteStore(path, group=group, clock=clock))
        else:
            connect = dialect(path, style)
            stores.append(DbApiStore(connect, group=group, paramstyle=style, clock=clock))
    yield Subject(stores[0], stores[1], clock.advance)
    for store in stores:
        store.close()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_every_database_keeps_the_promises(
    promise: Callable[[Subject], None], subject: Subject
) -> None:
    promise(subject)


def test_the_style_of_parameters_is_that_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = types.ModuleType("somedriver")
    driver.paramstyle = "pyformat"  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "somedriver", driver)
    monkeypatch.setattr(Dialect, "__module__", "somedriver.connections")
    store = DbApiStore(dialect(tmp_path / "x", "pyformat"), group="g")
    assert store.claim("k", "me", HOUR_MS) is Claim.YOURS
    store.close()
    plain = DbApiStore(lambda: sqlite3.connect(tmp_path / "x"), group="g")
    assert plain.claim("k", "me", HOUR_MS) is Claim.BUSY
    plain.close()


def test_the_keys_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a" / "handled.sqlite"
    first = SqliteStore(path)
    first.claim("k", "me", HOUR_MS)
    first.finish("k", "me", HOUR_MS)
    first.close()
    again = SqliteStore(str(path))
    assert again.claim("k", "you", HOUR_MS) is Claim.DONE
    again.close()


def test_rows_that_nobody_needs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handled_keys, "CLEAN_EVERY", 10)
    clock = ManualClock()
    store = SqliteStore(tmp_path / "handled.sqlite", clock=clock)
    for number in range(25):
        store.claim(str(number), "me", HOUR_MS)
        store.finish(str(number), "me", 1000)
        clock.advance(100)
    store.close()
    rows = sqlite3.connect(tmp_path / "handled.sqlite")
    (count,) = rows.execute("SELECT count(*) FROM onelog_handled").fetchone()
    rows.close()
    assert 10 <= count < 20


def test_a_connection_that_broke_is_replaced(tmp_path: Path) -> None:
    made: list[sqlite3.Connection] = []

    def connect() -> DbConnection:
        made.append(sqlite3.connect(tmp_path / "x", check_same_thread=False))
        return made[-1]

    store = DbApiStore(connect, group="g")
    assert store.claim("k", "me", HOUR_MS) is Claim.YOURS
    made[0].close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.claim("other", "me", HOUR_MS)
    assert store.claim("other", "me", HOUR_MS) is Claim.YOURS
    assert len(made) == 2
    store.close()


def test_a_database_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(b"this is no database, but it is long enough to look at" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        DbApiStore(lambda: sqlite3.connect(path), group="g").claim("k", "me", HOUR_MS)


def _claim_in_child(store: SqliteStore, answers: "multiprocessing.Queue[str]") -> None:
    answers.put(store.claim("k", "child", HOUR_MS).value)
    answers.put(store.claim("only the child's", "child", HOUR_MS).value)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "handled.sqlite")
    assert store.claim("k", "parent", HOUR_MS) is Claim.YOURS
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=_claim_in_child, args=(store, answers))
    child.start()
    assert (answers.get(timeout=30), answers.get(timeout=30)) == ("busy", "yours")
    child.join()
    assert store.claim("only the child's", "parent", HOUR_MS) is Claim.BUSY
    assert os.getpid() == store._pid
    store.close()
