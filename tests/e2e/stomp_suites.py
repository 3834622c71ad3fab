"""stomp.py's own tests, run against OneLog, or against any other server of STOMP.

    python -m tests.e2e.stomp_suites [--report FILE] [--server HOST:PORT] SOURCE

SOURCE is a checkout of its repository: its package on PyPI has no tests. They run in an environment
of their own, in a folder of their own; nothing of them is kept here. Left out are those that need
servers of another kind: a proxy that knows names, a certificate that has expired, multicast.
"""

import argparse
import contextlib
import os
import socket
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import onelog
from tests.e2e.kafka_suites import counts, outcomes

NEEDS = ("pytest", "pytest-mock", "pytest-ordering", "pytest-timeout", "websocket-client", "docopt")
LEFT_OUT = ("test_ssl_sni.py", "test_multicast.py")
LEFT_OUT_CASES = "not expired and not test_ssl_fail"
CASE_SECONDS = 60
USUAL_PORT = 61613


@contextlib.contextmanager
def started(server: str) -> Iterator[dict[str, str]]:
    """The environment that tells these tests where a server is."""
    if server:
        host, _, given = server.rpartition(":")
        yield _environment(host, given, given)
        return
    from tests.ports import free_port

    http_port = free_port()
    # Some of them do not ask where the server is.
    port = USUAL_PORT if _is_free(USUAL_PORT) else -1
    with onelog.embedded(stomp=True, stomp__port=port, http__port=http_port) as mq:
        assert mq.stomp_address is not None
        host, number = mq.stomp_address
        yield _environment(host, str(number), str(http_port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _environment(host: str, port: str, http_port: str) -> dict[str, str]:
    found = {"STD_SSL_PORT": port, "RABBITMQ_WS_HOST": host, "RABBITMQ_WS_PORT": http_port}
    for name in ("STD", "RABBITMQ", "ARTEMIS", "STOMPSERVER"):
        found |= {f"{name}_HOST": host, f"{name}_PORT": port}
        found |= {f"{name}_USER": "guest", f"{name}_PASSWORD": "guest"}
    return found


def python_of(folder: Path) -> Path:
    """The interpreter of an environment that has what the tests need."""
    home = folder / "venv"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin/python", "-m", "pip", "--quiet", "install", *NEEDS], check=True)
        (home / "ready").touch()
    return home / "bin" / "python"


def run(source: Path, folder: Path, server: str = "") -> dict[str, str]:
    """How each case ended."""
    found: dict[str, str] = {}
    python = python_of(folder)
    with started(server) as told:
        environment = {**os.environ, **told, "PYTHONPATH": str(source)}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
        for path in sorted((source / "tests").glob("test_*.py")):
            if path.name in LEFT_OUT:
                continue
            report = folder / f"{path.stem}.xml"
            command = [str(python), "-m", "pytest", "-q", "--tb=short", f"--timeout={CASE_SECONDS}"]
            command += ["-p", "no:cacheprovider", "-k", LEFT_OUT_CASES, f"--junitxml={report}"]
            with (folder / f"{path.stem}.log").open("w") as log:
                subprocess.run(
                    [*command, str(path.relative_to(source))],
                    cwd=source,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    check=False,
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                )
            some = outcomes(report)
            print(f"{path.stem}: {counts(some)}", flush=True)
            found |= some
    return found


def main() -> None:
    """Run them, and print what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--folder", type=Path, help="kept; a temporary one unless given")
    parser.add_argument("--server", default="", help="another server than OneLog, as host:port")
    parser.add_argument("--report", type=Path, help="write what was found here, too")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        found = run(given.source.resolve(), folder.resolve(), given.server)
    failed = [name for name, how in found.items() if how == "failed"]
    page = f"stomp.py: {counts(found)}\n" + "".join(f"- {name}\n" for name in failed)
    print(page)
    if given.report is not None:
        given.report.write_text(page)


if __name__ == "__main__":
    main()
