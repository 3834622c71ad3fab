"""The disk of the tests: what is written to it need not be on it, because nobody pulls the plug.

Waiting for the disk is most of what a store that is opened and closed a thousand times does. A
flush that does nothing changes nothing for whoever reads the file, in this process or in another.
Servers in processes of their own flush as ever.
"""

import os

fsync = os.fsync
"""The real one, for tests that have pages thrown out of memory, which only clean ones are."""


def spare() -> None:
    """From now on flushes find out whether the file is open, and no more."""

    def flushed(fd: int) -> None:
        os.fstat(fd)

    for name in ("fsync", "fdatasync"):
        setattr(os, name, flushed)
