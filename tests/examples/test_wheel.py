"""The wheel: everything that is needed is in it, and nothing else has to be on the machine."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from onelog import __version__
from tests.e2e.processes import log_tail, spawn, stop, wait_until
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("onelog", "pyspark_onelog", "onelog_examples", "onelog_bench")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree, built with what is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=200,
    )
    (found,) = folder.glob("*.whl")
    return found


def source_files() -> dict[str, Path]:
    """Every file of every package, by its place in the wheel."""
    return {
        str(path.relative_to(folder)): path
        for folder in (ROOT / "src", ROOT / "examples", ROOT / "benchmarks" / "command")
        for package in PACKAGES
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_every_package(wheel: Path) -> None:
    sources = source_files()
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert held == set(sources)
        assert [name for name in held if archive.read(name) != sources[name].read_bytes()] == []
    # So that the comparison is not of nothing with nothing.
    assert {name.partition("/")[0] for name in held} == set(PACKAGES)
    for needed in (
        "onelog/console/web/index.html",
        "onelog/console/web/app.js",
        "onelog/console/web/style.css",
        "onelog/wire/grpc/rocketmq.binpb",
        "onelog/wire/grpc/protos/apache/rocketmq/v2/service.proto",
        "onelog/wire/kafka/schemas.txt",
        "onelog/py.typed",
    ):
        assert needed in held


def test_the_wheel_says_what_it_is_and_brings_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        about = f"onelog-{__version__}.dist-info"
        entry_points = archive.read(f"{about}/entry_points.txt").decode()
        metadata = archive.read(f"{about}/METADATA").decode()
        assert f"{about}/licenses/LICENSE" in archive.namelist()
    assert "onelog = onelog.cli:main" in entry_points
    assert "onelog = onelog.pytest_plugin" in entry_points
    assert f"Version: {__version__}" in metadata
    assert "Requires-Python: >=3.11" in metadata


@pytest.mark.e2e
def test_installed_in_an_empty_environment_it_serves(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, command = tmp_path / "venv/bin/python", tmp_path / "venv/bin/onelog"
    # Nothing of this checkout, and no setting of whoever runs the tests.
    for name in list(os.environ):
        if name.startswith("ONELOG_") or name in ("PYTHONPATH", "VIRTUAL_ENV"):
            monkeypatch.delenv(name)

    def run(*words: str | Path, text: str = "") -> str:
        done = subprocess.run(
            words,
            cwd=tmp_path,
            input=text,
            text=True,
            capture_output=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    lock = ROOT / "requirements-dev.lock"
    run(python, "-m", "pip", "install", "-q", "--no-input", "-c", lock, wheel)
    assert run(command, "--version") == f"onelog {__version__}\n"
    assert "site-packages" in run(python, "-c", "import onelog; print(onelog.__file__)")

    names = "nameserver broker http kafka amqp mqtt stomp grpc".split()
    ports = {name: free_port() for name in names}
    flags = [word for name in names for word in (f"--{name}-port", str(ports[name]))]
    log = tmp_path / "server.log"
    server = spawn([str(command), "up", "--data", str(tmp_path / "data"), *flags], log)
    try:
        wait_until(lambda: "ready in" in log_tail(log) or server.poll() is not None, "it", 120)
        assert server.poll() is None, log_tail(log)
        at = ("-n", f"127.0.0.1:{ports['nameserver']}")
        run(command, "produce", "orders", *at, text="first\n")
        assert run(command, "consume", "orders", "--count", "1", "--bodies", *at) == "first\n"
        page = (
            "import urllib.request as r; print(r.urlopen("
            f"'http://127.0.0.1:{ports['http']}/').read().decode())"
        )
        assert "<html" in run(python, "-c", page)
    finally:
        assert stop(server, timeout_s=60) == 0
