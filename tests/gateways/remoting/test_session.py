"""Every error of the broker has a code of its own choosing; the disk is waited for elsewhere."""

import ast
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

import onelog
from onelog import errors
from onelog.errors import OnelogError, StoreClosedError
from onelog.gateways.remoting.session import ERROR_CODES, LOOKUPS_MAX, response_code
from onelog.store.message_store import MessageStore
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.gateways.remoting.live import broker, client
from tests.gateways.remoting.samples import SAMPLES

SOURCE = Path(onelog.__file__).parent
REACHED = ("core", "store", "gateways/remoting", "wire/remoting", "net/remoting.py", "message.py")
"""What runs while a request is handled."""


def errors_named_in(path: Path) -> set[str]:
    """The errors that a module imports, to raise or to handle them."""
    return {
        alias.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "onelog.errors"
        for alias in node.names
    }


def modules() -> list[Path]:
    found = []
    for place in REACHED:
        path = SOURCE / place
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


REACHABLE = sorted(set[str]().union(*map(errors_named_in, modules())) - {"OnelogError"})


def test_the_errors_are_found_at_all() -> None:
    assert {"TopicNotFoundError", "StoreFullError", "WireError", "PeerTimeoutError"} <= set(
        REACHABLE
    )


@pytest.mark.parametrize("name", REACHABLE)
def test_every_error_that_a_request_can_end_in_has_a_code(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, OnelogError)
    assert set(kind.__mro__[: kind.__mro__.index(OnelogError)]) & set(ERROR_CODES)
    assert response_code(kind("reason")) != ResponseCode.SUCCESS


def test_an_error_without_a_code_has_that_of_its_nearest_parent() -> None:
    class OneOfTheirsError(StoreClosedError):
        pass

    assert response_code(OneOfTheirsError("")) == ERROR_CODES[errors.StoreError]
    assert response_code(OnelogError("")) == ResponseCode.SYSTEM_ERROR


class Readings:
    """Who reads what of the store that may be on disk only, and in which thread."""

    NAMES = ("message_at", "find_by_key", "store_time", "offset_by_time")

    def __init__(self, store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, tuple[object, ...], int]] = []
        for name in self.NAMES:
            monkeypatch.setattr(store, name, self._watched(name, getattr(store, name)))

    def _watched(self, name: str, read: Callable[..., object]) -> Callable[..., object]:
        def watched(*args: object) -> object:
            self.seen.append((name, args, threading.get_ident()))
            return read(*args)

        return watched

    def unprepared(self) -> list[tuple[str, tuple[object, ...]]]:
        """What this thread has read, and no worker before it."""
        mine = threading.get_ident()
        known: set[tuple[str, tuple[object, ...]]] = set()
        found = []
        for name, args, thread in self.seen:
            if thread != mine:
                known.add((name, args))
            elif (name, args) not in known:
                found.append((name, args))
        return found


async def test_whatever_is_on_disk_only_is_read_by_a_worker_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as one:
        for sample in SAMPLES:
            await one.peer.ask(RequestCode(sample.code), sample.ext, sample.body, 20_000)
        monkeypatch.setattr(server.store, "is_warm", lambda log_offset, size: False)
        readings = Readings(server.store, monkeypatch)
        for sample in SAMPLES:
            await one.peer.ask(RequestCode(sample.code), sample.ext, sample.body, 20_000)
        assert {name for name, _, _ in readings.seen} == set(Readings.NAMES)
        assert readings.unprepared() == []


async def test_a_question_that_a_worker_cannot_answer_gets_its_error(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        assert server.gateway.lookups == 0
        answer = await one.ask(RequestCode.VIEW_MESSAGE_BY_ID, topic="orders", offset=10**6)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "outside" in str(answer.remark)
        with mock.patch.object(server.store, "message_at", side_effect=KeyError("a bug")):
            answer = await one.ask(RequestCode.VIEW_MESSAGE_BY_ID, topic="orders", offset=0)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "KeyError")
        assert server.gateway.lookups == 0


async def test_questions_to_the_disk_have_a_limit(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        server.gateway.lookups = LOOKUPS_MAX
        answer = await one.ask(RequestCode.VIEW_MESSAGE_BY_ID, topic="orders", offset=0)
        assert answer.code == ResponseCode.SYSTEM_BUSY
