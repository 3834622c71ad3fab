"""Background jobs: whatever goes wrong in one is said once, and the job goes on.

A job is the same work again and again: a timer's, a task's, a thread's. The body of its loop stands
in `with job:`, which an exception leaves, but does not pass:

    while True:
        await asyncio.sleep(10)
        with job:
            clean_up()

Invariant: nothing but the end of the process (or a cancelled task) ends a job. Of failures that
follow each other the first is logged, in full if it is not one of ours; then every tenth, hundredth
and so on; and that it works again.
"""

import logging
from types import TracebackType

from onelog.errors import OnelogError

log = logging.getLogger(__name__)


class Job:
    """One job, by what people call it."""

    __slots__ = ("_failures", "_said_next", "error", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: Exception | None = None
        """What the last run ended with."""
        self._failures = 0
        self._said_next = 1

    @property
    def failed(self) -> bool:
        """Whether the last run ended with an exception."""
        return self.error is not None

    def __enter__(self) -> "Job":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, Exception):
            self._note(error)
            self.error = error.with_traceback(None)  # Its frames hold what the work had in hand.
            return True
        self.error = None
        if error is None and self._failures:
            log.warning("%s works again, after %d failures", self.name, self._failures)
            self._failures, self._said_next = 0, 1
        return False

    def _note(self, error: Exception) -> None:
        self._failures += 1
        if self._failures < self._said_next:
            return
        self._said_next = self._failures * 10
        if self._failures > 1:
            log.error("%s failed %d times in a row: %r", self.name, self._failures, error)
        elif isinstance(error, OnelogError):
            log.error("%s failed, and is tried again: %s", self.name, error)
        else:
            log.error("%s failed, and is tried again", self.name, exc_info=error)
