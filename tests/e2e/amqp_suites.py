"""Other people's suites for RabbitMQ's clients, run against OneLog and against a real RabbitMQ.

    python -m tests.e2e.amqp_suites --folder FOLDER                # everything; an hour
    python -m tests.e2e.amqp_suites --suite kombu --server onelog

Their tests come with their source packages (pip) and go into a folder of their own, with an
environment of their own; nothing of them is kept here. pika's package has no tests: PIKA_SOURCE
names a checkout of its repository. Celery's results are kept by a Redis server. Cases that need TLS
are left out.

A case that fails is tried once more, as in `kafka_suites`; so is what is kept.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.kafka_suites import (
    Package,
    Suite,
    SuiteMissingError,
    Workplace,
    report,
    run_file,
)
from tests.e2e.onelog_amqp import OnelogAmqp
from tests.e2e.processes import spawn, stop
from tests.e2e.rabbitmq_peer import RabbitmqPeer
from tests.ports import free_port

SERVERS = ("onelog", "rabbitmq")
_PYTEST = ("pytest", "pytest-timeout", "pytest-rerunfailures")
_PLACE = """
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
SUITES = (
    Suite("kombu", Package("kombu", "5.7.0", "t/integration", _PYTEST, ()), ("test_py_amqp.py",)),
    Suite("py-amqp", Package("amqp", "5.4.2", "t/integration", _PYTEST, ()), ("test_rmq.py",)),
    Suite(
        "aiormq",
        Package(
            "aiormq",
            "7.2.4",
            "tests",
            (*_PYTEST, "aiomisc-pytest"),
            (),
            forgotten=(("suite_place.py", _PLACE),),
        ),
        (".",),
    ),
    Suite(
        "pika",
        Package(
            "pika",
            "1.4.4",
            "tests/acceptance",
            (*_PYTEST, "twisted", "tornado", "gevent"),
            (),
            "PIKA_SOURCE",
        ),
        (".",),
    ),
    Suite(
        "celery",
        Package(
            "celery",
            "5.7.0",
            "t/integration",
            (
                *_PYTEST,
                "celery[redis]==5.7.0",
                "pytest-celery",
                "pytest-subtests",
                "sqlalchemy",
                "pymemcache",
                "cryptography",
                "pydantic",
                "django",
            ),
            (),
        ),
        (
            "test_canvas.py",
            "test_tasks.py",
            "test_inspect.py",
            "test_group_chains.py",
            "test_worker.py",
            "test_serialization.py",
            "test_connection_recovery.py",
        ),
    ),
)
_OPTIONS = {
    "py-amqp": ("-k", "not ssl and not tls"),
    "aiormq": ("-k", "not amqps and not ssl", "-p", "suite_place"),
    "pika": ("-o", "addopts=", "-o", "python_files=*_test.py *_tests.py"),
}


def run(place: Workplace, suite: Suite, server: str) -> None:
    """Run a suite against a server that is started for it."""
    package = suite.package
    source = _given(package) or place.source(package)
    kept = place.results(suite, server)
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    python = str(place.python(package))
    with started(server, kept / "server") as port, _redis(kept) as redis:
        environment = {
            **os.environ,
            "RABBITMQ_HOST": "127.0.0.1",
            "RABBITMQ_5672_TCP": str(port),
            "TEST_BROKER": f"pyamqp://guest:guest@127.0.0.1:{port}//",
            "TEST_BACKEND": f"redis://127.0.0.1:{redis}/0",
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(redis),
            "PYTHONPATH": str(source),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        }
        if package.source_variable:
            source = _moved_to(port, source, kept / "source")
            environment["PYTHONPATH"] = str(source)
        for folder in suite.folders:
            tests = f"{package.tests}/{folder}"
            command = [python, "-m", "pytest", tests, *_OPTIONS.get(suite.name, ())]
            run_file(f"{suite.name} on {server}", command, source, environment, kept)


def _given(package: Package) -> Path | None:
    variable = package.source_variable
    if not variable:
        return None
    if variable not in os.environ:
        raise SuiteMissingError(f"set {variable} to a checkout of {package.name}'s repository")
    return Path(os.environ[variable])


def _moved_to(port: int, source: Path, copy: Path) -> Path:
    """A copy of tests that know no port but RabbitMQ's."""
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git"))
    for path in (copy / "tests").rglob("*.py"):
        text = path.read_text()
        if path.parent.name in ("acceptance", "base") and "5672" in text:
            path.write_text(text.replace("5672", str(port)))
    return copy


@contextlib.contextmanager
def started(server: str, folder: Path) -> Iterator[int]:
    """A server, until the block ends, and its port."""
    shutil.rmtree(folder, ignore_errors=True)
    # What RabbitMQ 3 takes; of 4, as here, it is 16 MiB.
    settings = {"broker.routed_body_bytes_max": 128 << 20, "store.segment_bytes": 256 << 20}
    with OnelogAmqp(folder, settings) if server == "onelog" else RabbitmqPeer(folder) as peer:
        yield peer.port


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[int]:
    """A Redis server for Celery's results, if there is one."""
    port, program = free_port(), shutil.which("redis-server")
    if program is None:
        yield port
        return
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    child = spawn(command, folder / "redis.log")
    try:
        yield port
    finally:
        stop(child)


def main() -> None:
    """Run what is asked for, and print what is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [suite.name for suite in SUITES]
    parser.add_argument("--folder", type=Path, help="kept; a temporary one unless given")
    parser.add_argument("--suite", action="append", choices=names, help="all, unless given")
    parser.add_argument("--server", action="append", choices=SERVERS, help="both, unless given")
    parser.add_argument("--report", type=Path, help="write the page here, too")
    parser.add_argument("--only-report", action="store_true", help="run nothing")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        place = Workplace(folder.resolve())
        for suite in SUITES:
            if given.only_report or suite.name not in (given.suite or names):
                continue
            for server in given.server or SERVERS:
                try:
                    run(place, suite, server)
                except (SuiteMissingError, subprocess.CalledProcessError) as error:
                    print(f"{suite.name}: {error}", file=sys.stderr)
        peer = f"RabbitMQ {RabbitmqPeer(folder).version}"
        page = report(place, "amqp-suites", SUITES, SERVERS, peer)
        print(page)
        if given.report is not None:
            given.report.write_text(page)


if __name__ == "__main__":
    main()
