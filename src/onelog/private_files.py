"""Files and folders that are nobody's but the user's who runs the process: 0600 and 0700.

What holds messages, keys or names is made so whatever the process's umask is, and `close_to_others`
repairs what an older version or a copy has left open. RocketMQ's processes of the same user read
and write them as before.
"""

import contextlib
import logging
import os
import stat
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
        os.makedirs(each, FOLDER_MODE, exist_ok=True)


def write(path: Path, data: bytes) -> None:
    """Write a file that is for nobody else."""
    with open(path, "wb", opener=opener) as file:
        file.write(data)


def close_to_others(folder: Path) -> int:
    """Take from others what they may do with a folder and all that is in it; in how many places.

    What belongs to another user stays as it is. Links are not followed.
    """
    closed, failed, left = 0, "", [str(folder)]

    def close(path: str, mode: int) -> None:
        nonlocal closed, failed
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            try:
                os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)
                closed += 1
            except FileNotFoundError:
                pass
            except OSError as error:
                failed = failed or str(error)

    close(left[0], os.stat(folder).st_mode)
    while left:
        with os.scandir(left.pop()) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                with contextlib.suppress(FileNotFoundError):
                    close(entry.path, entry.stat(follow_symlinks=False).st_mode)
    if closed:
        log.warning(
            "%s: other users of this machine could read or write %d files and folders, and cannot "
            "any more (0600 and 0700 now)",
            folder,
            closed,
        )
    if failed:
        log.warning("%s: other users may be able to read something there: %s", folder, failed)
    return closed
