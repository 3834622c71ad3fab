"""The command line as a whole: its version, its help, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onelog import __version__, cli
from onelog.errors import StoreFullError

HEAVY = ("numpy", "onelog.store.message_store", "onelog.server", "asyncio", "uvloop")


def test_the_version() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"onelog {__version__}\n"


def test_help_loads_nothing_that_commands_work_with() -> None:
    code = (
        "import sys\n"
        "from onelog import cli\n"
        "sys.argv = ['onelog', '--help']\n"
        "try:\n"
        "    cli.main()\n"
        "finally:\n"
        f"    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "store" in shown.stdout
    assert shown.stderr == "[]\n"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (StoreFullError("no room [red] here"), 2, "onelog: no room [red] here\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_on_purpose_is_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr() == ("", told)


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli.app, ["stoer"])
    assert result.exit_code == 2
    assert "stoer" in result.stderr


def test_interrupting_a_command_ends_it_with_130(tmp_path: Path) -> None:
    # A named pipe in the place of a file: reading it waits for a writer, who never writes.
    (tmp_path / "commitlog").mkdir()
    fifo = tmp_path / "onelog.json"
    subprocess.run(["mkfifo", str(fifo)], check=True)
    command = [sys.executable, "-m", "onelog", "store", "inspect", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        writer = opened_when_read(fifo)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        os.close(writer)
    assert child.returncode == 130
    assert b"Traceback" not in err
    assert out == b""


def opened_when_read(fifo: Path) -> int:
    """The other end of a named pipe, once somebody reads it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
