"""RocketMQ's official 5.x client for Python, installed with pip into an environment of its own.

It pulls in versions of gRPC and protobuf that must not become ours, so it is kept in the user's
cache folder, one environment for each version of it and of Python.

Invariant: an environment is used only if pip finished in it; what is left of a failed attempt is
removed before the next one.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "5.1.2"
# What it runs on decides its speed, so that is pinned too.
REQUIREMENTS = (f"rocketmq-python-client=={VERSION}", "grpcio==1.85.1", "protobuf==7.36.2")
STEP_TIMEOUT_S = 300


class OfficialClientMissingError(Exception):
    """The official client could not be installed; the message says why."""


def official_python() -> Path:
    """The interpreter that has the official client; installs it at the first time."""
    python_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = _cache() / f"rocketmq-python-client-{VERSION}-py{python_version}"
    python = folder / "bin" / "python"
    finished = folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS) + "\n"
    if not finished.exists() or finished.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _step("venv", [sys.executable, "-m", "venv", str(folder)])
        _step("pip", [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS])
        finished.write_text(wanted)
    return python


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onelog"


def _step(name: str, command: list[str]) -> None:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OfficialClientMissingError(f"{name}: {error}") from None
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip().splitlines()
        reason = next((line for line in said if "ERROR" in line), said[-1] if said else "no reason")
        raise OfficialClientMissingError(f"{name}: {reason}")
