"""The folder of a queue: from the name of its topic, and back.

    consumequeue/<topic>/<queue id>/00000000000000000000

RocketMQ calls the folder as the topic is called, and so it is here for every name that it allows.
Other names are escaped, so that a folder has only ASCII characters, is inside its parent, and no
two topics share one:

    ~2f              for a byte of the name's UTF-8 that is not printable ASCII, or is / \\ or ~
    ~2e, ~2e~2e      for the names . and ..
    part~/part       for a name that is longer than a folder's name may be

A folder that somebody called otherwise is read all the same, and its queues stay where they are.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from onelog.names import check_name

QUEUES_FOLDER = "consumequeue"
_PART_MAX = 254
_UNSAFE = re.compile(rb"[^ -.0-\[\]-}]")
_DOT = re.compile(rb"\.")
_ESCAPED = re.compile(rb"~([0-9a-f]{2})")


def folder_of(topic: str) -> str:
    """The folder of a topic, relative to that of all queues."""
    name = check_name(topic)
    text = (_DOT if topic in (".", "..") else _UNSAFE).sub(_escape, name)
    if len(text) <= _PART_MAX + 1:
        return text.decode("ascii")
    text = _DOT.sub(_escape, text)  # No part may be one dot, or two.
    parts = [text[at : at + _PART_MAX] for at in range(0, len(text), _PART_MAX)]
    return b"~/".join(parts).decode("ascii")


def _escape(found: "re.Match[bytes]") -> bytes:
    return b"~%02x" % found[0][0]


def topic_of(folder: str) -> str:
    """The inverse of `folder_of`."""
    name = os.fsencode(folder.replace("~/", ""))
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name).decode("utf-8", "replace")


def queue_folder(root: Path, topic: str, queue_id: int) -> Path:
    """Where a queue is, in the folder of all queues."""
    return root / folder_of(topic) / str(queue_id)


def parents_of(folder: Path) -> tuple[Path, ...]:
    """The folders above a queue's, from its topic's up to the store's."""
    depth = 1
    while folder.parents[depth].name.endswith("~"):
        depth += 1
    return tuple(folder.parents[: depth + 2])


def queue_folders(root: Path) -> Iterator[tuple[str, int, Path]]:
    """The (topic, queue id, folder) of each queue there is, in the order of folders and ids."""
    for folder, path in _topic_folders(root, "") if root.is_dir() else ():
        found = [e for e in _entries(path) if e.name.isascii() and e.name.isdigit() and e.is_dir()]
        if found:
            topic = topic_of(folder)
            for queue in sorted(found, key=lambda entry: int(entry.name)):
                yield topic, int(queue.name), Path(queue.path)


def _topic_folders(parent: "Path | str", before: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(_entries(parent), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name.endswith("~"):
                yield from _topic_folders(entry.path, f"{before}{entry.name}/")
            else:
                yield before + entry.name, entry.path


def _entries(folder: "Path | str") -> "list[os.DirEntry[str]]":
    with os.scandir(folder) as found:
        return list(found)
