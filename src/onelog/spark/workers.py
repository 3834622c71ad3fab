"""Spark's Python workers: what they need not look at again and again, and need not say.

After each task PySpark has its worker collect garbage, which means to look at all that was ever
imported: forty milliseconds for that, where a small task takes five, and the next task waits. But
what is there when a worker's first task ends stays as long as the worker, so the collector can
leave it alone.

A query that needs no more rows (`show`, `limit`, `first`) closes the pipes of its tasks, and one
that is stopped that of its source; what plans and commits for a driver is left as soon as it has
answered. These workers end with that, as they should; PySpark prints a traceback for each.

Invariant: only processes that run tasks are settled, and each once.
"""

import functools
import gc
import re
import sys
import traceback
from types import TracebackType
from typing import Any

_CLOSED = (BrokenPipeError, ConnectionResetError)
_OF_DRIVERS = re.compile(r"pyspark\.sql\.(worker|streaming)\.\w+")
"""Modules that PySpark starts to find, plan, follow or commit for a driver."""
_is_settled = False


def task() -> Any:
    """The context of the running task; None on a driver."""
    from pyspark import TaskContext

    return TaskContext.get()


def settle() -> None:
    """To be called at the end of a task, when all that tasks need is there."""
    global _is_settled
    if not _is_settled and task() is not None:
        _is_settled = True
        gc.collect()
        gc.freeze()


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


def hide_pipes_of_drivers() -> None:
    """The same, if this process is one that works for a driver."""
    if any(_OF_DRIVERS.fullmatch(each) for each in sys.orig_argv):
        hide_closed_pipes()
