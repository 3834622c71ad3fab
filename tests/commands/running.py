"""Runs `onelog` as its users do, in this process: arguments in, exit code and texts out."""

import asyncio
import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from onelog.cli import main


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


def run(*arguments: str, stdin: str = "") -> Ended:
    """Run a command to its end."""
    # With bytes below, as the real ones: some commands read and write those.
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    code: int | str | None = 0
    with (
        mock.patch.object(sys, "argv", ["onelog", *arguments]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    out.flush()
    out.seek(0)
    return Ended(int(code or 0), out.read(), err.getvalue())


async def run_beside(*arguments: str, stdin: str = "") -> Ended:
    """The same in a thread, so that what it talks to can go on in this one."""
    return await asyncio.to_thread(run, *arguments, stdin=stdin)
