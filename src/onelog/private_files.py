"""Files and folders that are nobody's but the user's who runs the process: 0600 and 0700.

What holds messages, keys or names is made so whatever the process's umask is, and `close_to_others`
repairs what an older version or a copy has left open. RocketMQ's processes of the same user read
and write them as before.
"""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

FILE_MODE, FOLDER_MODE = 0o600, 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def opener(path: str, flags: int) -> int:
    """For `open`: a file that it makes is for nobody else."""
    return os.open(path, flags, FILE_MODE)


def make_folder(path: Path) -> None:
    """Make a folder that is for nobody else, and those above it that are not there."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        each.mkdir(FOLDER_MODE, exist_ok=True)


def close_to_others(folder: Path) -> int:
    """Take from others what they may do with a folder and all that is in it; in how many places.

    What belongs to somebody else stays as it is. Links are not followed.
    """
    count = 0
    for path in _within(folder):
        try:
            mode = os.lstat(path).st_mode
            if mode & _OTHERS and not stat.S_ISLNK(mode):
                os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)
                count += 1
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("%s can be read by others, and stays so: %s", path, error)
    if count:
        log.warning(
            "%s: other users of this machine could read or write %d files and folders, and cannot "
            "any more (0600 and 0700 now)", folder, count,
        )  # fmt: skip
    return count


def _within(folder: Path) -> Iterator[str]:
    yield str(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield os.path.join(parent, name)
