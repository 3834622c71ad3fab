"""How Spark reaches a cluster that wants encryption and signatures, and that secrets stay where
they are."""

import contextlib
import io
import pickle
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog.client.credentials import Credentials
from onelog.errors import ConfigError, OnelogError
from onelog.gateways.remoting.session import BrokerSession
from onelog.net.tls import write_self_signed
from onelog.spark import lake
from onelog.spark.brokers import connect
from onelog.spark.jobs import topics
from onelog.spark.link import ENVIRONMENT, Encryption, Link
from onelog.spark.options import NAMES, read_options, write_options
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from tests.spark.conftest import StartCluster
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET, TOKEN = "hush-hush", "psst-psst"
WHO = Credentials("ops", SECRET, TOKEN)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ENVIRONMENT.values():
        monkeypatch.delenv(variable, raising=False)


def link(**options: str) -> Link:
    return write_options({"nameserver": "127.0.0.1:1", "topic": "x", **options}).link


def test_options_say_who_and_how(tmp_path: Path) -> None:
    cert, key = write_self_signed(tmp_path)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    found = link(
        accessKey="ops",
        secretKeyFile=str(tmp_path / "secret"),
        securityToken=TOKEN,
        tlsCa=str(cert),
        tlsHostname="false",
        tlsCert=str(cert),
        tlsKey=str(key),
    )
    assert found.credentials == WHO
    assert found.tls == Encryption(str(cert), False, str(cert), str(key))
    context = found.client_options()["tls"]
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert pickle.loads(pickle.dumps(found)) == found
    assert link(tls="true").tls == Encryption()
    assert link(tls="false").tls is None
    assert set(ENVIRONMENT) <= set(NAMES)


def test_the_environment_says_it_where_no_option_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, _ = write_self_signed(tmp_path)
    for name, value in {
        "accessKey": "ops",
        "secretKey": SECRET,
        "securityToken": TOKEN,
        "tlsCa": str(cert),
        "tlsHostname": "no",
    }.items():
        monkeypatch.setenv(ENVIRONMENT[name], value)
    assert link().credentials == WHO
    assert link().tls == Encryption(str(cert), check_hostname=False)
    # The token of one user does not go with the key of another, nor a check with a plain link.
    assert link(accessKey="me", secretKey="mine").credentials == Credentials("me", "mine")
    assert link(tls="false").tls is None
    assert link(tls="true").tls == Encryption()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"accessKey": "ops"}, "option accessKey needs the option secretKey"),
        ({"secretKey": SECRET}, "option secretKey needs the option accessKey"),
        ({"securityTokenFile": "f"}, "f: No such file"),
        ({"secretKey": SECRET, "secretKeyFile": "f"}, "options secretKey and secretKeyFile excl"),
        ({"accessKey": "ops", "secretKeyFile": "f"}, "option secretKeyFile f: No such file"),
        ({"tlsCert": "c"}, "option tlsCert needs the option tlsKey"),
        ({"tlsKey": "c"}, "option tlsKey needs the option tlsCert"),
        ({"tlsHostname": "false"}, "option tlsHostname needs the option tlsCa"),
        ({"tlsCa": "none.pem"}, "none.pem: No such file"),
        ({"tls": "maybe"}, "option tls is true or false"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_without_secrets(
    options: dict[str, str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        link(**options)
    assert reason in str(refusal.value)
    assert SECRET not in str(refusal.value)
    for name, value in options.items():
        monkeypatch.setenv(ENVIRONMENT[name], value)
    with pytest.raises(ConfigError) as refusal:
        link()
    assert SECRET not in str(refusal.value)
    if reason.startswith("option "):
        assert ENVIRONMENT[reason.split()[1]] in str(refusal.value)


def test_no_secret_is_shown_with_options() -> None:
    given = {"subscribe": "x", "accessKey": "ops", "secretKey": SECRET, "securityToken": TOKEN}
    shown = repr(read_options(given)) + repr(write_options({**given, "topic": "x"}))
    assert SECRET not in shown
    assert TOKEN not in shown


# -- with servers that demand encryption ---------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Every request that reaches a broker."""
    heard: list[Command] = []
    handle = BrokerSession.handle

    def spy(session: BrokerSession, command: Command) -> None:
        assert session.connection.secure
        heard.append(command)
        handle(session, command)

    monkeypatch.setattr(BrokerSession, "handle", spy)
    return heard


@pytest.fixture
def secure(
    start_cluster: StartCluster, asked: list[Command], tmp_path: Path
) -> tuple[ThreadedCluster, dict[str, str]]:
    """A cluster, and the options with which it is reached."""
    cert, key = write_self_signed(tmp_path, ("localhost", "127.0.0.1"))
    settings = {"tls__mode": "enforcing", "tls__cert_path": str(cert), "tls__key_path": str(key)}
    cluster = start_cluster(**settings)
    cluster.topic("in", 1)
    cluster.topic("out", 1)
    cluster.fill("in", 5, 1)
    asked.clear()
    options = {
        "nameserver": cluster.nameserver,
        "accessKey": "ops",
        "secretKey": SECRET,
        "securityToken": TOKEN,
        "tlsCa": str(cert),
    }
    return cluster, options


def test_a_certificate_of_another_authority_is_refused(
    secure: tuple[ThreadedCluster, dict[str, str]], tmp_path: Path
) -> None:
    _, options = secure
    assert connect(link(**options)).topics() == ("in", "out")
    (tmp_path / "other").mkdir()
    other, _ = write_self_signed(tmp_path / "other", ("localhost", "127.0.0.1"))
    with pytest.raises(OnelogError, match="certificate verify failed"):
        connect(link(**{**options, "tlsCa": str(other), "retryTimeoutMs": "0"})).topics()


@pytest.mark.timeout(600)
def test_every_request_is_signed_and_no_secret_is_seen_anywhere(
    spark: "SparkSession",
    secure: tuple[ThreadedCluster, dict[str, str]],
    asked: list[Command],
    tmp_path: Path,
) -> None:
    cluster, options = secure
    reading = spark.read.format("onelog").options(subscribe="in", **options).load()
    assert reading.count() == 5
    rows = reading.select("body")
    rows.write.format("onelog").mode("append").options(topic="out", **options).save()
    follow = spark.readStream.format("onelog").options(
        subscribe="in", startingOffsets="earliest", **options
    )
    query = (
        follow.load()
        .select("body")
        .writeStream.format("onelog")
        .options(topic="out", checkpointLocation=str(tmp_path / "checkpoint"), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert lake.sync(["in"], tmp_path / "lake", spark=spark, options=options).rows == 5
    assert cluster.broker().store.max_offset("out", 0) == 10
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        rows.explain("formatted")
        rows.explain("extended")
        query.explain(extended=True)
    with pytest.raises(Exception, match="nowhere") as missing:
        spark.read.format("onelog").options(subscribe="nowhere", **options).load().count()
    texts = [shown.getvalue(), str(missing.value), *(each.json for each in query.recentProgress)]
    texts += [
        path.read_text(errors="replace")
        for folder in ("checkpoint", "lake")
        for path in (tmp_path / folder).rglob("*")
        if path.is_file()
    ]
    for text in texts:
        assert SECRET not in text
        assert TOKEN not in text
    for command in asked:
        assert command.ext == WHO.sign(command.ext, command.body), command.code
    expected = (RequestCode.PULL_MESSAGE, RequestCode.STAGE_MESSAGES, RequestCode.COMMIT_STAGED)
    assert {command.code for command in asked}.issuperset(expected)


def test_jobs_ask_with_the_same(
    secure: tuple[ThreadedCluster, dict[str, str]], asked: list[Command]
) -> None:
    _, options = secure
    topics.create(options, "made", 3)
    assert topics.queues(options, "made") == 3
    assert asked
    for command in asked:
        assert command.ext == WHO.sign(command.ext, command.body), command.code
