"""The session of a command that runs on Spark."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onelog import spark as onelog_spark
from onelog.commands.spark_options import spark_session
from onelog.errors import ConfigError, OnelogError


class Session(SimpleNamespace):
    """Stands for Spark's: a process that goes on complaining after it was started."""

    def __init__(self, *_: object, **__: object) -> None:
        code = "import sys; sys.stderr.write('ready'); sys.stdin.read(); sys.stderr.write(' bye')"
        super().__init__(
            child=subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        )

    def stop(self) -> None:
        self.child.communicate()


def test_what_sparks_processes_complain_of_goes_to_the_log_and_not_to_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onelog_spark, "session", Session)
    log = tmp_path / "spark.log"
    with spark_session("x", log=log):
        os.write(2, b"ours")
    assert capfd.readouterr().err == "ours"
    assert log.read_text() == "ready bye"


def test_a_spark_that_does_not_start_is_said_to_have_left_its_reasons_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no gateway")

    monkeypatch.setattr(onelog_spark, "session", broken)
    log = tmp_path / "spark.log"
    with pytest.raises(OnelogError, match=f"no gateway; what it said is in {log}"):
        with spark_session("x", log=log):
            pass
    with pytest.raises(RuntimeError, match="no gateway"):
        with spark_session("x"):
            pass
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="exclude each other"):
        with spark_session("x", "local[1]", "sc://127.0.0.1:1", log=log):
            pass
