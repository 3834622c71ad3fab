"""Python workers of Spark, without tracebacks of pipes that the other side has closed.

A query that needs no more rows (`show`, `limit`, `first`) closes the pipes of its tasks, and one
that is stopped that of its source. Their workers end with that, as they should; PySpark prints a
traceback for each.
"""

import functools
import sys
import traceback
from types import TracebackType

_CLOSED = (BrokenPipeError, ConnectionResetError)


@functools.cache
def hide_closed_pipes() -> None:
    """From now on, this worker says nothing of them. What else fails is shown as ever."""
    show_uncaught, show_caught = sys.excepthook, traceback.print_exc

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if not issubclass(kind, _CLOSED):
            show_uncaught(kind, error, trace)

    def caught(limit: int | None = None, file: object = None, chain: bool = True) -> None:
        if not isinstance(sys.exception(), _CLOSED):
            show_caught(limit, file, chain)  # type: ignore[arg-type]

    sys.excepthook = uncaught
    traceback.print_exc = caught
