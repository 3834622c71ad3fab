"""Why a store takes nothing more: for the moment, until there is room again, or for good."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from onelog.errors import StoreClosedError, StoreError, StoreFailedError, StoreFullError
from onelog.store.retention import HEAD_ROOM

_log = logging.getLogger(__name__)


class Refusals:
    """Of one store.

    Invariant: a disk that failed, or a store that was closed, stays refused.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.now: StoreError | None = None
        """What whoever appends is told."""
        self.hindrance: StoreError | None = None
        """Why writes are refused for the moment, until it is tried again."""
        self.full: StoreError | None = None
        """Because of the disk's ratio, as retention has found; and so only for now."""
        self.has_head_room: Callable[[float], bool] = lambda share: False
        """Whether the broker's own records may be written to such a disk."""
        self._failure: tuple[StoreError, int] | None = None

    @property
    def is_full(self) -> bool:
        """Whether it is only that the disk is too full."""
        return self.now is not None and self.now is self.full

    @property
    def is_closed(self) -> bool:
        return isinstance(self.now, StoreClosedError)

    @property
    def is_final(self) -> bool:
        """Whether what was written last may be lost."""
        return self.now not in (None, self.hindrance) and not self.is_full

    def known(self, log_end: int) -> StoreError | None:
        """Why nothing can be written, as far as is known, to a log that ends there."""
        if self.now is None and self._failure is not None:
            error, end = self._failure
            return error if end == log_end else None
        return self.now

    def failed(self, error: BaseException, log_end: int) -> None:
        """An append failed; if it was the disk, remember where the log ended then."""
        if isinstance(error, (StoreFullError, StoreFailedError)):
            self._failure = (error, log_end)

    def refuse(self, reason: StoreError | None) -> None:
        """Refuse all writes from now on; None accepts them again, unless the reason is final."""
        if not self.is_final:
            self.now = reason or self.hindrance

    def refuse_for_now(self, error: StoreError) -> None:
        """Whoever comes next has to try again what could not be done."""
        before, self.hindrance = self.hindrance, error
        if self.now is before:
            self.now = error

    def refuse_for_good(self, error: StoreError) -> None:
        if self.now is not error:
            self.now = error
            _log.error("%s takes no more writes: %s", self._folder, error)

    def retried(self) -> None:
        """What was in the way is done."""
        self.now = self.hindrance = None

    @contextlib.contextmanager
    def head_room(self, share: float = HEAD_ROOM) -> Iterator[None]:
        """While it lasts, writes go on for longer on a disk that fills: see `retention`.

        For what the broker has to write itself, so that space can be freed at all.
        """
        if not self.is_full or not self.has_head_room(share):
            yield
            return
        refusal, self.now = self.now, self.hindrance
        try:
            yield
        finally:
            # Unless a flush has failed meanwhile, which is final.
            self.now = self.now or refusal
