"""Other people's suites for MQTT, run against OneLog and against Mosquitto.

    python -m tests.e2e.mqtt_suites --folder FOLDER
    python -m tests.e2e.mqtt_suites --suite gmqtt --server onelog

The tests of gmqtt and aiomqtt come with their source packages (pip) and go into a folder of their
own, with an environment of their own; nothing of them is kept here. PAHO_MQTT_TESTING names a
checkout of paho.mqtt.testing, which is in no registry: its cases run one by one, because it waits
for ever for what does not come.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from onelog.config import Value
from tests.e2e.kafka_suites import Package, Workplace, outcomes
from tests.e2e.onelog_mqtt import Mosquitto, OnelogMqtt

PAHO_SOURCE = "PAHO_MQTT_TESTING"
CASE_SECONDS = 120
SERVERS = ("onelog", "mosquitto")
_REFUSED = "test/nosubscribe"
_NEEDS = ("pytest", "pytest-timeout", "pytest-asyncio", "anyio")
PACKAGES = {
    "gmqtt": Package("gmqtt", "0.8.0", "tests", _NEEDS, ()),
    "aiomqtt": Package("aiomqtt", "2.5.1", "tests", _NEEDS, ()),
}
PAHO = {"paho, version 3.1.1": "client_test", "paho, version 5": "client_test5"}
SUITES = (*PAHO, *PACKAGES)

_PAHO_CASE = """\
import importlib, sys, unittest
name, port, case = sys.argv[1:]
sys.path.insert(0, ".")
suite = importlib.import_module(name)
suite.host, suite.port = "127.0.0.1", int(port)
suite.topics = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
suite.wildtopics = ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")
suite.nosubscribe_topics = ("test/nosubscribe",)
suite.topic_prefix = "client_test5/"
if case == "list":
    print("\\n".join(unittest.TestLoader().getTestCaseNames(suite.Test)))
else:
    unittest.main(module=suite, argv=["suite", "Test." + case])
"""
_PLACE = """\
import aiomqtt, os, pytest
original = aiomqtt.Client.__init__
def connect(self, hostname, port=1883, **options):
    if hostname == "test.mosquitto.org":
        if port != 1883:
            pytest.skip("a port of its own server")
        hostname, port = "127.0.0.1", int(os.environ["PORT"])
    original(self, hostname, port, **options)
aiomqtt.Client.__init__ = connect
"""
"""aiomqtt's tests have a public server in them: here they have this one."""


def paho(source: Path, name: str, port: int) -> dict[str, str]:
    """How each case of one of paho's two programs ends."""

    def run(case: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _PAHO_CASE, name, str(port), case],
            text=True,
            check=False,
            cwd=source / "interoperability",
            capture_output=True,
            timeout=CASE_SECONDS,
        )

    found = {}
    for case in run("list").stdout.split():
        try:
            done = run(case)
        except subprocess.TimeoutExpired:
            found[case] = "failed"
        else:
            found[case] = "failed" if done.returncode else "passed"
            if done.returncode:
                print(done.stderr[-2_000:])
        print(f"{name}.{case}: {found[case]}", flush=True)
    return found


def packaged(place: Workplace, name: str, port: int) -> dict[str, str]:
    """How each case of a package's tests ends."""
    package = PACKAGES[name]
    source, python = place.source(package), place.python(package)
    (source / "onelog_place.py").write_text(_PLACE)
    report = place.folder / f"{name}.xml"
    command = [str(python), "-m", "pytest", "--quiet", "--tb=short", f"--junitxml={report}"]
    command += [f"--timeout={CASE_SECONDS}", "-p", "no:cacheprovider", package.tests]
    if name == "aiomqtt":
        command += ["-p", "onelog_place"]
    environment = {**os.environ, "HOST": "127.0.0.1", "PORT": str(port), "PYTHONPATH": str(source)}
    subprocess.run(command, cwd=source, env=environment, check=False)
    return outcomes(report)


@contextlib.contextmanager
def started(server: str, folder: Path) -> Iterator[int]:
    """A server, until the block ends, and its port."""
    if server == "onelog":
        settings: dict[str, Value] = {"mqtt.keep_alive_max_s": 60, "mqtt.receive_maximum": 20}
        settings["mqtt.refused_filters"] = _REFUSED
        with OnelogMqtt(folder, settings) as onelog:
            yield onelog.port
    else:
        with Mosquitto(folder, "max_keepalive 60") as mosquitto:
            yield mosquitto.port


def run(place: Workplace, suite: str, server: str) -> dict[str, str]:
    """How each case of a suite ends, on a server of its own."""
    folder = place.folder / server / suite.replace(", ", "-").replace(" ", "-")
    with started(server, folder) as port:
        if suite in PAHO:
            return paho(Path(os.environ[PAHO_SOURCE]), PAHO[suite], port)
        return packaged(place, suite, port)


def counts(found: dict[str, str]) -> str:
    """As people write them."""
    numbers = Counter(found.values())
    return ", ".join(f"{numbers[how]} {how}" for how in ("passed", "failed", "skipped"))


def main() -> None:
    """Run what is asked for, and print how it went."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="kept; a temporary one unless given")
    parser.add_argument("--suite", action="append", choices=SUITES, help="all, unless given")
    parser.add_argument("--server", action="append", choices=SERVERS, help="all, unless given")
    given = parser.parse_args()
    servers = given.server or [each for each in SERVERS if each == "onelog" or Mosquitto.program()]
    lines = []
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        place = Workplace(folder.resolve())
        for suite in given.suite or SUITES:
            if suite in PAHO and PAHO_SOURCE not in os.environ:
                lines.append(f"{suite}: {PAHO_SOURCE} does not say where its tests are")
                continue
            for server in servers:
                found = run(place, suite, server)
                failed = [name for name, how in found.items() if how == "failed"]
                lines.append(f"{suite} on {server}: {counts(found)} {failed or ''}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
