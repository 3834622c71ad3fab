"""What commands on Spark are told about a cluster, and the session that they get."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onelog import spark as onelog_spark
from onelog.cli import app
from onelog.client import Credentials
from onelog.commands.link import LINK
from onelog.commands.spark_options import source_options, spark_session
from onelog.errors import ConfigError, OnelogError
from onelog.net.tls import write_self_signed
from onelog.spark.link import ENVIRONMENT, Encryption
from onelog.spark.options import read_options


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


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("pyspark.sql", ["job", "reconcile", "in", "out"]),
        ("onelog_examples.demo", ["demo"]),
        ("onelog.spark.lake", ["lake", "list", "x"]),
        ("pyarrow.dataset", ["pipeline", "show", "x"]),
    ],
)
def test_a_command_that_lacks_the_extra_says_what_to_install(
    missing: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"pip install 'onelog\[spark\]'"):
        app(words, standalone_mode=False)


# -- the cluster ---------------------------------------------------------------------------------


class ToldError(Exception):
    """Ends a command where it would begin to work, with what it was told."""


JOBS = {
    "onelog_examples.sales_board.start": ("sales-board", "in", "--folder", "x"),
    "onelog.spark.jobs.copies.redistribute": ("redistribute", "in", "--to", "out"),
    "onelog.spark.jobs.copies.deduplicate": ("deduplicate", "in", "--to", "out"),
    "onelog.spark.jobs.reconcile.reconcile": (
        "reconcile",
        "in",
        "out",
        "--second-nameserver",
        "other:1",
    ),
    "onelog.spark.jobs.clean_logs.start": ("clean-logs", "in", "--to", "out"),
    "onelog.spark.jobs.clean_logs.statistics": ("clean-logs", "in"),
    "onelog.spark.jobs.trace_latency.report": ("trace-latency",),
    "onelog.spark.jobs.triage.letters": ("triage", "billing"),
}


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    cert, key = write_self_signed(tmp_path)
    (tmp_path / "secret").write_text("hush-hush\n")
    return [
        "-n",
        "host:9876",
        "--access-key",
        "ops",
        "--secret-key-file",
        str(tmp_path / "secret"),
        "--security-token",
        "psst",
        "--tls-ca",
        str(cert),
        "--no-tls-hostname",
        "--tls-cert",
        str(cert),
        "--tls-key",
        str(key),
    ]


def expected(tmp_path: Path) -> dict[str, str]:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    return {
        "nameserver": "host:9876",
        "accessKey": "ops",
        "secretKey": "hush-hush",
        "securityToken": "psst",
        "tls": "true",
        "tlsCa": cert,
        "tlsHostname": "false",
        "tlsCert": cert,
        "tlsKey": key,
    }


@pytest.mark.parametrize("place", JOBS)
def test_every_job_takes_credentials_and_verified_tls(
    place: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(_: object, link: dict[str, str], *__: object, **more: Any) -> None:
        raise ToldError(link, more.get("second_link"))

    monkeypatch.setattr("onelog.commands.spark_options.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr(place, begin)
    with pytest.raises(ToldError) as told:
        app(["job", *JOBS[place], *options, "--timeout", "7"], standalone_mode=False)
    link, second = told.value.args
    assert link == {**expected(tmp_path), "requestTimeoutMs": "7000"}
    if second is not None:
        assert second == {**link, "nameserver": "other:1"}
    read_options({**link, "subscribe": "x"})


def test_a_sync_takes_credentials_and_verified_tls(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: object, options: dict[str, str], **__: object) -> None:
        raise ToldError(options)

    monkeypatch.setattr("onelog.commands.spark_options.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("onelog.spark.lake.sync", begin)
    with pytest.raises(ToldError) as told:
        app(["lake", "sync", "in", "--to", "x", *options], standalone_mode=False)
    assert told.value.args[0].items() >= expected(tmp_path).items()


def test_a_pipeline_hears_of_them_by_its_environment_and_not_by_its_command_line(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(words: list[str], *, env: dict[str, str], **_: object) -> None:
        raise ToldError(words, env)

    monkeypatch.setattr("onelog.spark.pipelines.command", lambda *_, **__: ["spark-pipelines"])
    monkeypatch.setattr(subprocess, "run", begin)
    with pytest.raises(ToldError) as told:
        app(["pipeline", "run", str(tmp_path), *options], standalone_mode=False)
    words, environment = told.value.args
    assert words == ["spark-pipelines"]
    for name, value in expected(tmp_path).items():
        assert environment[ENVIRONMENT[name]] == value
    monkeypatch.undo()
    for name in ENVIRONMENT.values():
        monkeypatch.setenv(name, environment.get(name, ""))
    found = read_options({"subscribe": "x"}).link
    assert found is not None
    assert found.credentials == Credentials("ops", "hush-hush", "psst")
    assert found.tls == Encryption(
        str(tmp_path / "cert.pem"), False, str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    )


def test_a_plain_command_says_so_whatever_the_environment_of_spark_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = source_options({name: default for name, (_, default) in LINK.items()})
    assert plain == {"nameserver": "127.0.0.1:9876", "requestTimeoutMs": "3000", "tls": "false"}
    monkeypatch.setenv("ONELOG_TLS", "true")
    found = read_options({**plain, "subscribe": "x"}).link
    assert found is not None
    assert found.tls is None
