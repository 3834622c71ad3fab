"""Durable sessions: what they take is added up, and there is a limit."""

from typing import Any
from unittest import mock

import pytest

from onelog.clock import ManualClock
from onelog.core.durable.tables import Change
from onelog.core.sessions.sessions import Sessions
from onelog.errors import BrokerBusyError


def sessions(bytes_max: int) -> Sessions:
    """Sessions whose changes are made as soon as they are written."""
    tables = mock.Mock()
    made = Sessions(tables, ManualClock(), bytes_max)
    parts: dict[str, Any] = {made.name: made, made.subscriptions.name: made.subscriptions}

    def write(changes: list[Change]) -> None:
        for table, key, value in changes:
            parts[table].apply(key, value)

    tables.write = write
    return made


def test_nothing_is_left_of_sessions_that_end() -> None:
    made = sessions(1 << 20)
    made.keep("one", 60, 0, "a will")
    made.keep("one", 60, 0, "another will")
    made.subscribe("one", {"a/b": (1, 0), "c": (0, 0)})
    made.subscribe("one", {"a/b": (2, 0)})
    taken = made.bytes
    made.keep("two", 60, 0)
    made.subscribe("two", {"a/b": (1, 0)})
    made.subscribe("two", {"a/b": None})
    made.forget("two")
    assert made.bytes == taken > 0
    made.forget("one")
    assert (made.bytes, made.kept) == (0, {})


def test_there_is_a_limit_to_what_clients_that_are_gone_may_leave_behind() -> None:
    made = sessions(bytes_max=2_000)
    made.check_room()
    made.keep("one", 60, 0, "x" * 2_000)
    with pytest.raises(BrokerBusyError, match="1 sessions are kept"):
        made.check_room()
    made.forget("one")
    made.check_room()
