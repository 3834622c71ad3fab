"""Other people's suites for Kafka, run against OneLog and against a real Kafka broker.

    python -m tests.e2e.kafka_suites --folder FOLDER                # everything; an hour
    python -m tests.e2e.kafka_suites --suite kafka-python --server onelog

Their tests come with their source packages (pip) and go into a folder of their own, with an
environment of their own; nothing of them is kept here. confluent-kafka's package has no tests:
CONFLUENT_KAFKA_SOURCE names a checkout of its repository at the tag below.

A case that fails is tried once more with the others that did: their time-outs are made for machines
that do nothing else. What is kept is how many passed, and the names of those that pass there only.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.kafka_peer import KafkaPeer
from benchmarks.table import machine_facts
from onelog.config import Value
from tests.e2e.onelog_kafka import OnelogKafka

CONFLUENT_SOURCE = "CONFLUENT_KAFKA_SOURCE"
CASE_SECONDS = 180
FILE_SECONDS = 900
SERVERS = ("onelog", "kafka")


class SuiteMissingError(Exception):
    """The tests of a suite cannot be had."""


@dataclass(frozen=True, slots=True)
class Package:
    """Whose tests they are, and what they need besides; `left_out` need a broker of their own."""

    name: str
    version: str
    tests: str
    needs: tuple[str, ...]
    left_out: tuple[str, ...]
    source_variable: str = ""
    forgotten: tuple[tuple[str, str], ...] = ()
    """Files that its tests import and its source package lacks."""

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Suite:
    """Some of a package's tests, and how they are told what to do."""

    name: str
    package: Package
    folders: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def files(self, source: Path) -> list[Path]:
        found = [
            path
            for folder in self.folders
            for path in sorted((source / self.package.tests / folder).glob("test_*.py"))
            if path.name not in self.package.left_out
        ]
        if not found:
            raise SuiteMissingError(f"{self.name}: no tests in {source}")
        return found


_EXTERNAL_SERVICE = """\
class SpawnedService: pass
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port
    def open(self): pass
    def close(self): pass
"""
KAFKA_PYTHON = Package(
    "kafka-python",
    "3.0.12",
    "test/integration",
    ("pytest", "pytest-timeout", "lz4", "zstandard", "python-snappy", "crc32c"),
    ("test_sasl_integration.py", "test_ssl_integration.py"),
    forgotten=(("test/__init__.py", ""), ("test/service.py", _EXTERNAL_SERVICE)),
)
CONFLUENT = Package(
    "confluent-kafka",
    "2.15.0",
    "tests/integration",
    (
        "confluent-kafka[schemaregistry,avro,json,protobuf]==2.15.0",
        "pytest",
        "pytest-timeout",
        "pytest-asyncio",
        "trivup",
        "requests-mock",
        "respx",
    ),
    ("test_describe_operations.py",),
    CONFLUENT_SOURCE,
)
_CONFLUENT_FOLDERS = ("admin", "consumer", "producer")
SUITES = (
    Suite("kafka-python", KAFKA_PYTHON, (".",)),
    *(
        Suite(
            f"confluent-kafka, {protocol} groups",
            CONFLUENT,
            _CONFLUENT_FOLDERS,
            {"TEST_CONSUMER_GROUP_PROTOCOL": protocol},
        )
        for protocol in ("classic", "consumer")
    ),
    Suite("confluent-kafka, share groups", CONFLUENT, ("share_consumer",)),
)
# As the fixtures of these suites would set them, were the broker theirs.
_PEER_SETTINGS = {
    "group.share.record.lock.duration.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.min.session.timeout.ms": "1000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


_OWN_SETTINGS: dict[str, Value] = {
    "kafka.session_min_ms": 1_000,
    "kafka.share_lock_ms": 1_000,
    "security.anonymous": True,
}


class Workplace:
    """A folder with the sources, environments and results of the suites."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, package: Package) -> Path:
        """The folder of the package's sources with its tests."""
        given = os.environ.get(package.source_variable, "") if package.source_variable else ""
        if given:
            return Path(given)
        source = self.folder / package.name
        if not source.exists():
            with tempfile.TemporaryDirectory(dir=self.folder) as download:
                command = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps"]
                command += ["--no-binary", package.name, "--dest", download, package.requirement]
                subprocess.run(command, check=True)
                (archive,) = Path(download).glob("*.tar.gz")
                with tarfile.open(archive) as packed:
                    packed.extractall(download, filter="data")
                (unpacked,) = (each for each in Path(download).iterdir() if each.is_dir())
                for name, content in package.forgotten:
                    (unpacked / name).write_text(content)
                unpacked.rename(source)
        if not (source / package.tests).exists():
            raise SuiteMissingError(
                f"the source package of {package.requirement} has no tests; "
                f"set {package.source_variable} to a checkout of its repository"
            )
        return source

    def python(self, package: Package) -> Path:
        """The interpreter of an environment that has the package and what its tests need."""
        home = self.folder / f"venv-{package.name}"
        python = home / "bin" / "python"
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            venv.create(home, with_pip=True)
            install = [str(python), "-m", "pip", "--quiet", "install"]
            subprocess.run([*install, package.requirement, *package.needs], check=True)
            (home / "ready").touch()
        return python

    def results(self, suite: Suite, server: str) -> Path:
        """Where the reports of a suite's files are."""
        return self.folder / "results" / suite.name.replace(", ", "-").replace(" ", "-") / server

    def run(self, suite: Suite, server: str) -> None:
        """Run a suite against a server that is started for it."""
        source, python = self.source(suite.package), self.python(suite.package)
        kept = self.results(suite, server)
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        with started(server, kept / "server") as bootstrap:
            environment = {
                **os.environ,
                **suite.environment,
                "BROKERS": bootstrap,
                "KAFKA_URI": f"kafka://{bootstrap}",
                "KAFKA_VERSION": "4.3.1",
                "KAFKA_ROOT": str(self.folder),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            for path in suite.files(source):
                command = [str(python), "-m", "pytest", str(path.relative_to(source))]
                run_file(f"{suite.name} on {server}", command, source, environment, kept)


def run_file(
    what: str, command: list[str], source: Path, environment: Mapping[str, str], kept: Path
) -> None:
    """Run a command of pytest, and once more what failed; reports go to `kept`."""
    stem = Path(command[3]).stem
    command = [*command, "--quiet", "--tb=short", "--color=no", f"--timeout={CASE_SECONDS}"]
    for attempt in ("first", "again"):
        again = ["--last-failed"] if attempt == "again" else []
        report = kept / f"{stem}.{attempt}.xml"
        with (kept / f"{stem}.{attempt}.log").open("w") as log:
            # In a session of its own: some of these tests send signals to themselves.
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [*command, "-o", f"cache_dir={kept / 'cache'}", *again, f"--junitxml={report}"],
                    cwd=source,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    timeout=FILE_SECONDS,
                    check=False,
                    start_new_session=True,
                )
        failed = [name for name, how in outcomes(report).items() if how == "failed"]
        print(f"{what}, {stem}, {attempt}: {failed or 'ok'}", flush=True)
        if not failed:
            break


@contextlib.contextmanager
def started(server: str, folder: Path) -> Iterator[str]:
    """A server, until the block ends, and where its clients begin."""
    shutil.rmtree(folder, ignore_errors=True)
    with (
        OnelogKafka(folder, _OWN_SETTINGS)
        if server == "onelog"
        else KafkaPeer(folder, settings=_PEER_SETTINGS)
    ) as peer:
        yield peer.bootstrap


def outcomes(report: Path) -> dict[str, str]:
    """How each case of a report ended; a file that never ended is a case that failed."""
    name = report.name.split(".")[0]
    if not report.exists():
        return {f"{name} (did not end)": "failed"}
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2]
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = "skipped" if kinds == {"skipped"} else "failed" if kinds else "passed"
        key = f"{module}.{case.get('name')}"
        # A case whose clean-up fails, too, is there twice.
        found[key] = "failed" if "failed" in (outcome, found.get(key)) else outcome
    return found


def all_outcomes(folder: Path) -> dict[str, str]:
    """How each case of a suite ended, in the end."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.first.log")):
        found |= outcomes(path.with_suffix(".xml"))
        again = folder / path.name.replace(".first.log", ".again.xml")
        if again.exists():
            found |= outcomes(again)
    return found


def report(
    place: Workplace,
    title: str = "kafka-suites",
    suites: Sequence[Suite] = SUITES,
    servers: tuple[str, str] = SERVERS,
    peer: str = "Kafka 4.3.1",
) -> str:
    """What is known, as a page."""
    lines = [f"# {title}, {datetime.now(UTC).date().isoformat()}", ""]
    lines += [f"- {name.replace('_', ' ')}: {value}" for name, value in machine_facts().items()]
    lines += [
        "",
        f"| suite | cases | OneLog | {peer} | pass there only |",
        "|---|---|---|---|---|",
    ]
    there_only, neither = [], []
    for suite in suites:
        here, there = (all_outcomes(place.results(suite, server)) for server in servers)
        if not here and not there:
            lines.append(f"| {suite.name} | - | not run | not run | - |")
            continue
        missing = [
            name
            for name, how in there.items()
            if here and how == "passed" and here.get(name) != "passed"
        ]
        both = [name for name, how in there.items() if how == "failed" == here.get(name)]
        there_only += [f"- {suite.name}: `{name}`" for name in missing]
        neither += [f"- {suite.name}: `{name}`" for name in both]
        package = f"{suite.name} ({suite.package.version})"
        cells = [package, str(len(here.keys() | there.keys())), counts(here), counts(there)]
        lines.append(f"| {' | '.join(cells)} | {len(missing)} |")
    page = f"docs/protocols/{title.partition('-')[0]}.md"
    lines += ["", f"Cases that pass on {peer} and not on OneLog ({page} says why):", ""]
    lines += there_only or ["none"]
    lines += ["", "Cases that fail on both:", "", *(neither or ["none"])]
    return "\n".join(lines) + "\n"


def counts(found: Mapping[str, str]) -> str:
    """As people write them."""
    if not found:
        return "not run"
    numbers = Counter(found.values())
    return ", ".join(f"{numbers[how]} {how}" for how in ("passed", "failed", "skipped"))


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
                    place.run(suite, server)
                except SuiteMissingError as error:
                    print(f"{suite.name}: {error}")
        page = report(place)
        print(page)
        if given.report is not None:
            given.report.write_text(page)


if __name__ == "__main__":
    main()
