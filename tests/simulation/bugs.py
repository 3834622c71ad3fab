"""Bugs that are put into the code on purpose, one at a time: the simulation must find each."""

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from onelog.core.assembly import Assembly
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.tables import Change, Tables
from onelog.replication.election import Election
from onelog.replication.identity import Identity
from onelog.replication.leader import Leader
from onelog.replication.replica import Replica


@contextlib.contextmanager
def acknowledge_before_confirm() -> Iterator[None]:
    """Written here is enough for a sender to be told so."""

    def when_replicated(self: Leader, log_offset: int, callback: WhenSafe) -> None:
        callback(None)

    with mock.patch.object(Leader, "when_replicated", when_replicated):
        yield


@contextlib.contextmanager
def forget_the_fence() -> Iterator[None]:
    """Whoever is told another role lets those who wait in the old one have their answers."""
    made = Leader.__post_init__

    def with_old_rights(self: Leader) -> None:
        made(self)
        self.is_proven = lambda: True

    with (
        mock.patch.object(Leader, "fence"),
        mock.patch.object(Leader, "__post_init__", with_old_rights),
        mock.patch.object(Assembly, "fence"),
    ):
        yield


@contextlib.contextmanager
def no_truncation() -> Iterator[None]:
    """A node that comes back keeps what only it has."""

    def cut(self: Replica, log_offset: int, why: str, then: Callable[[Any], None]) -> None:
        then(None)

    with mock.patch.object(Replica, "_cut", cut):
        yield


@contextlib.contextmanager
def keep_an_expired_lease() -> Iterator[None]:
    """A lease that was granted once counts for ever."""

    def renewed(self: Election, sent: float) -> None:
        self._proven_until = math.inf

    with mock.patch.object(Election, "_renewed", renewed):
        yield


@contextlib.contextmanager
def apply_before_record() -> Iterator[None]:
    """Tables change before it is known whether the change can be recorded."""
    write = Tables.write

    def applied(self: Tables, changes: list[Change]) -> None:
        self.apply(changes)
        write(self, changes)

    with mock.patch.object(Tables, "write", applied):
        yield


@contextlib.contextmanager
def act_while_the_log_is_read() -> Iterator[None]:
    """What is overdue by half of what is recorded is done at once, and recorded behind the rest."""

    def schedule(self: Assembly, wait_ms: int, callback: Callable[[], None]) -> None:
        self._timer(wait_ms, lambda: None if self._is_gone else callback())

    with mock.patch.object(Assembly, "_schedule", schedule):
        yield


@contextlib.contextmanager
def take_any_disk_for_the_former_one() -> Iterator[None]:
    """A node with another disk counts as the member that it was."""

    def recognize(self: Election) -> None:
        self._is_recognized = True

    with (
        mock.patch.object(Election, "_recognize", recognize),
        mock.patch.object(Replica, "_keeps", return_value=0),
    ):
        yield


@contextlib.contextmanager
def forget_doubt_at_a_clean_stop() -> Iterator[None]:
    """Who was stopped cleanly counts as intact, whatever was before."""
    made = Identity.__init__

    def without_doubt(self: Identity, node: int, *given: Any, clean: bool, **more: Any) -> None:
        made(self, node, *given, clean=clean, **more)
        if clean:
            self.trust()

    with mock.patch.object(Identity, "__init__", without_doubt):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug
    for bug in (
        acknowledge_before_confirm,
        forget_the_fence,
        no_truncation,
        keep_an_expired_lease,
        apply_before_record,
        act_while_the_log_is_read,
        take_any_disk_for_the_former_one,
        forget_doubt_at_a_clean_stop,
    )
}
