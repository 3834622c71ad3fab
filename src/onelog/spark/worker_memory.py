"""What Spark's Python workers need not look at again and again.

After each task PySpark has its worker collect garbage, which means to look at all that was ever
imported: forty milliseconds for that, where a small task takes five, and the next task waits. But
what is there when a worker's first task ends stays as long as the worker, so the collector can
leave it alone.

Invariant: only processes that run tasks are touched, and each once.
"""

import gc

from onelog.spark.write.stream_writers import task

_is_settled = False


def settle() -> None:
    """To be called at the end of a task, when all that tasks need is there."""
    global _is_settled
    if not _is_settled and task() is not None:
        _is_settled = True
        gc.collect()
        gc.freeze()
