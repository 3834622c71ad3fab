"""A server for a demonstration: a process of its own, on free ports, that ends with it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onelog.errors import OnelogError

STOP_SECONDS_MAX = 20
_SMALL = ("store.segment_bytes=67108864", "broker.vip_port=0")


@contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """Run `onelog up` in a folder; gives the address of its name server."""
    arguments = ["--data", str(folder), "--nameserver-port", "0", "--broker-port", "0"]
    for setting in _SMALL:
        arguments += ["--set", setting]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "onelog", "up", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            # Ctrl-C goes to the whole group of a terminal; the server ends when we say so.
            start_new_session=True,
        )
        try:
            yield _address(child, folder)
        finally:
            child.terminate()
            try:
                child.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            assert child.stdout is not None
            child.stdout.close()


def _address(child: "subprocess.Popen[bytes]", folder: Path) -> str:
    """What the server says about itself, up to when it is ready."""
    address = ""
    assert child.stdout is not None
    for line in child.stdout:
        words = line.decode().split()
        if words[:2] == ["name", "server"]:
            address = words[2]
        if words[:1] == ["ready"]:
            return address
    said = (folder / "server.log").read_text().strip()
    raise OnelogError(f"the server did not start: {said or 'it does not say why'}")
