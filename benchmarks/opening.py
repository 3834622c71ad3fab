"""Opening a store: a large one and one with many queues, after a clean stop and after a crash.

Every store is written, killed and opened by a child process of its own: a crash is a real SIGKILL
while the child appends at full speed, and what an opening costs is not hidden by what the process
did before. Called as a program, this module is such a child.
"""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.table import Options, Row, not_run, under
from benchmarks.timing import Stopwatch
from benchmarks.traffic import QueueName, lists, queues
from onelog.config import StoreConfig
from onelog.message import NewMessage
from onelog.store.message_store import MessageStore

GIB = 1 << 30
BODY_BYTES = 1024
SPARE_BYTES = 2 * GIB
CHILD_TIMEOUT_S = 240
CRASH_TIMEOUT_S = 20
KILL_BEFORE_CHECKPOINT_S = 0.3
FOREVER = 1 << 62
QUEUES_PER_TOPIC = 100
MESSAGES_PER_QUEUE = 10


class ChildFailedError(Exception):
    """A child process did not do its part."""


def large_store(options: Options) -> list[Row]:
    """10 GiB of messages of 1 KiB, each with a tag and a unique key."""
    folder = options.folder / "large"
    wanted = GIB if options.quick else 10 * GIB
    stat = os.statvfs(options.folder)
    room = stat.f_bavail * stat.f_frsize - SPARE_BYTES
    size = min(wanted, int(room / 1.2))
    if size < GIB // 4:
        return [not_run("open a large store", f"only {room >> 20} MiB of disk free")]
    name = f"open {size / GIB:.3g} GiB"
    short = "" if size == wanted else f"the disk has no room for {wanted // GIB} GiB; "
    options.announce(f"writing {size / GIB:.3g} GiB")
    filled = _child("fill", folder, size)
    _forget_pages(folder)
    options.announce(f"{name} after a clean stop, and after a crash")
    clean = _child("open", folder)
    _crash(folder, "append", options.quick)
    crashed = _child("open", folder)
    speed = f"written at {filled['bytes'] / filled['seconds'] / 1e6:.0f} MB/s"
    return [
        under(
            f"{name} after a clean stop",
            clean["seconds"],
            "s",
            1,
            note=f"{short}{filled['messages']:,} messages {speed}; page cache dropped",
        ),
        under(f"{name} after SIGKILL", crashed["seconds"], "s", 10, note=_replayed(crashed)),
    ]


def many_queues(options: Options) -> list[Row]:
    """10,000 queues, and what they cost in memory."""
    folder = options.folder / "queues"
    count = 1_000 if options.quick else 10_000
    name = f"open {count:,} queues"
    options.announce(f"making {count:,} queues")
    _child("make-queues", folder, count)
    _forget_pages(folder)
    options.announce(f"{name} after a clean stop, and after a crash")
    clean = _child("open", folder)
    _crash(folder, "append-queues", options.quick, count)
    crashed = _child("open", folder)
    touched = _child("touch", folder)
    return [
        under(f"{name} after a clean stop", clean["seconds"], "s", 5, note="page cache dropped"),
        under(f"{name} after SIGKILL", crashed["seconds"], "s", 5, note=_replayed(crashed)),
        under(
            f"memory of {count:,} open queues", clean["rss_anon_mib"], "MiB", 300, note="RssAnon"
        ),
        under(
            f"memory of {count:,} queues in use",
            touched["rss_anon_mib"],
            "MiB",
            300,
            note="RssAnon after a read from and an append to each",
        ),
    ]


def _replayed(opened: dict[str, Any]) -> str:
    report = opened["recovery"]
    cut = f", cut {report['cut_bytes']:,} bytes" if report["cut_bytes"] else ""
    return f"replayed {report['records_replayed']:,} records{cut}"


# The parent's side of a child.


def _command(action: str, folder: Path, *arguments: int) -> list[str]:
    return [sys.executable, "-m", __name__, action, str(folder), *map(str, arguments)]


def _child(action: str, folder: Path, *arguments: int) -> dict[str, Any]:
    try:
        ended = subprocess.run(
            _command(action, folder, *arguments),
            stdout=subprocess.PIPE,
            text=True,
            timeout=CHILD_TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired as late:
        raise ChildFailedError(f"{action!r} did not end in {CHILD_TIMEOUT_S} s") from late
    except subprocess.CalledProcessError as failed:
        raise ChildFailedError(f"{action!r} ended with {failed.returncode}") from failed
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def _crash(folder: Path, action: str, quick: bool, *arguments: int) -> None:
    """Kill a child that appends, shortly before a checkpoint is due: that is the worst moment."""
    checkpoint = folder / "checkpoint"
    age_s = 1.0 if quick else StoreConfig().checkpoint_interval_ms / 1000 - KILL_BEFORE_CHECKPOINT_S
    with subprocess.Popen(
        _command(action, folder, *arguments), stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            began = time.monotonic()
            changed_ns, changed_at = 0, began
            # A slow checkpoint is followed sooner by the next; then the time-out ends this.
            while time.monotonic() - began < CRASH_TIMEOUT_S:
                found_ns = checkpoint.stat().st_mtime_ns
                if found_ns != changed_ns:
                    changed_ns, changed_at = found_ns, time.monotonic()
                if time.monotonic() - changed_at >= age_s:
                    break
                if child.poll() is not None:
                    raise ChildFailedError(f"{action!r} ended with {child.returncode}")
                time.sleep(0.05)
        finally:
            child.send_signal(signal.SIGKILL)


def _forget_pages(folder: Path) -> None:
    """Drop a store's files from the page cache, as a restart of the machine would."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


# The child's side.


def _large_names() -> list[QueueName]:
    return queues(topics=4, queues_per_topic=4)


def _many_names(count: int) -> list[QueueName]:
    return queues(topics=count // QUEUES_PER_TOPIC, queues_per_topic=QUEUES_PER_TOPIC)


def _fill(folder: Path, size: int) -> dict[str, Any]:
    """Append until the log has `size` bytes, and stop cleanly."""
    messages = 0
    with Stopwatch() as watch:
        store = MessageStore.open(folder)
        for chunk in lists(FOREVER, BODY_BYTES, _large_names(), keyed=True):
            store.append(chunk)
            messages += len(chunk)
            if store.log_end >= size:
                break
        size = int(store.log_end)
        store.close()
    return {"messages": messages, "bytes": size, "seconds": watch.wall_s}


def _make_queues(folder: Path, count: int) -> dict[str, Any]:
    """Some messages for each of `count` queues, and a clean stop."""
    store = MessageStore.open(folder)
    for chunk in lists(count * MESSAGES_PER_QUEUE // 64 + 1, 100, _many_names(count), keyed=True):
        store.append(chunk)
    store.close()
    return {}


def _append_for_ever(folder: Path, chunks: Iterator[list[NewMessage]]) -> None:
    store = MessageStore.open(folder)
    print("appending", flush=True)
    for chunk in chunks:
        store.append(chunk)


def _open(folder: Path, touch: bool) -> dict[str, Any]:
    """Open, and stop cleanly; with `touch`, read from and append to every queue in between."""
    with Stopwatch() as watch:
        store = MessageStore.open(folder)
    if touch:
        for topic, ids in store.queues().items():
            for queue_id in ids:
                store.read(topic, queue_id, store.min_offset(topic, queue_id))
            store.append([NewMessage(topic, queue_id, b"x") for queue_id in ids])
    status = Path("/proc/self/status").read_text()
    rss_anon = re.search(r"^RssAnon:\s*(\d+) kB$", status, re.MULTILINE)
    answer = {
        "seconds": watch.wall_s,
        "rss_anon_mib": int(rss_anon[1]) / 1024 if rss_anon else 0,
        "recovery": asdict(store.recovery),
    }
    store.close()
    return answer


def _main(action: str, folder: Path, *arguments: int) -> None:
    if action == "append":
        _append_for_ever(folder, lists(FOREVER, BODY_BYTES, _large_names(), keyed=True))
    elif action == "append-queues":
        _append_for_ever(folder, lists(FOREVER, 100, _many_names(*arguments), keyed=True))
    elif action == "fill":
        print(json.dumps(_fill(folder, *arguments)))
    elif action == "make-queues":
        print(json.dumps(_make_queues(folder, *arguments)))
    else:
        print(json.dumps(_open(folder, touch=action == "touch")))


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # Recovery after a crash warns; here that is expected.
    _main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
