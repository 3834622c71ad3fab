"""Other people's suites for RabbitMQ's clients, run against OneLog and against a real RabbitMQ.

    python -m tests.e2e.amqp_suites --folder FOLDER                       # against OneLog
    python -m tests.e2e.amqp_suites --folder FOLDER --port 5672       # against who is there
    python -m tests.e2e.amqp_suites --suite kombu

Their tests come with their source packages (pip) and go into a folder of their own, with an
environment of their own; nothing of them is kept here. Cases that need TLS are left out.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

import onelog

CASE_SECONDS = 60
SUITE_SECONDS = 1800
PLACE = """
import os
from types import SimpleNamespace

import pytest
from yarl import URL


@pytest.fixture
def rabbitmq_container():
    port = int(os.environ["RABBITMQ_5672_TCP"])
    return SimpleNamespace(host="127.0.0.1", ports={"5672/tcp": port, "5671/tcp": 1})


@pytest.fixture
def amqp_direct_url():
    return URL(f"amqp://guest:guest@127.0.0.1:{os.environ['RABBITMQ_5672_TCP']}/")
"""
"""Fixtures that aiormq's tests need and its source package lacks."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Whose tests they are, where, and what they need besides."""

    package: str
    version: str
    tests: str
    left_out: str
    needs: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """As pip knows it."""
        return f"{self.package}=={self.version}"


SUITES = {
    "kombu": Suite(
        "kombu", "5.7.0", "t/integration/test_py_amqp.py", "", ("pytest-rerunfailures",)
    ),
    "py-amqp": Suite("amqp", "5.4.2", "t/integration/test_rmq.py", "not ssl and not tls"),
    "aiormq": Suite("aiormq", "7.2.4", "tests", "not amqps and not ssl", ("aiomisc-pytest",)),
}


def run(suite: Suite, folder: Path, port: int) -> str:
    """Run a suite against the broker on a port; what pytest says at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "venv", with_pip=True)
    needs = [suite.requirement, "pytest", "pytest-timeout", *suite.needs]
    subprocess.run([python, "-m", "pip", "install", "-q", *needs], check=True)
    source = _source(suite, folder, python)
    (folder / "suite_place.py").write_text(PLACE)
    plugins = ["-p", "suite_place"] if suite.package == "aiormq" else []
    chosen = ["-k", suite.left_out] if suite.left_out else []
    environment = {
        **os.environ,
        "RABBITMQ_HOST": "127.0.0.1",
        "RABBITMQ_5672_TCP": str(port),
        "PYTHONPATH": f"{folder}:{source}",
    }
    command = [
        str(python), "-m", "pytest", suite.tests, "-q", "-p", "no:cacheprovider", "--timeout",
        str(CASE_SECONDS), *plugins, *chosen,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True,
        timeout=SUITE_SECONDS, check=False,
    )  # fmt: skip
    wanted = re.compile(r"FAILED|ERROR tests|ERROR t/|\d+ passed|\d+ failed")
    return "\n".join(line for line in done.stdout.splitlines() if wanted.search(line))


def _source(suite: Suite, folder: Path, python: Path) -> Path:
    """Where its source package is unpacked."""
    stem = f"{suite.package.replace('-', '_')}-{suite.version}"
    if not (folder / stem).exists():
        subprocess.run(
            [python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", suite.package,
             "-d", folder, suite.requirement],
            check=True,
        )  # fmt: skip
        with tarfile.open(folder / f"{stem}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / stem


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="for sources and environments; kept")
    parser.add_argument("--suite", choices=SUITES, action="append")
    parser.add_argument("--port", type=int, help="of a broker that runs; without it, OneLog")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="amqp-suites-"))
    for name in arguments.suite or SUITES:
        if arguments.port:
            said = run(SUITES[name], folder / name, arguments.port)
        else:
            with onelog.embedded(amqp=True) as mq:
                port = int(mq.amqp_url.rstrip("/").rpartition(":")[2])
                said = run(SUITES[name], folder / name, port)
        sys.stdout.write(f"{name}\n{said}\n")


if __name__ == "__main__":
    main()
