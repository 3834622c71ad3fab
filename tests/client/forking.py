"""Something done in a forked child, and what came of it."""

import os
import warnings
from collections.abc import Callable


def in_a_child(work: Callable[[], str]) -> str:
    """What `work` returns in a child process, or the error that it raises, as a text."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of forks while there are threads; how we behave then is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said
