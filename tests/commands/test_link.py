"""How commands are told whom to reach and as whom, and that secrets stay where they are."""

import re
import ssl
from pathlib import Path
from typing import Any

import pytest

from onelog.client.credentials import SECRET_BYTES_MAX
from onelog.commands.link import ENVIRONMENT, LINK, client_options
from onelog.config_sources import load
from onelog.errors import ConfigError, OnelogError
from onelog.gateways.remoting.session import BrokerSession
from onelog.nameserver.session import NameserverSession
from onelog.net.tls import write_self_signed
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.commands.conftest import Run
from tests.commands.running import run_beside

GIVEN: dict[str, Any] = {name: default for name, (_, default) in LINK.items()}
OF_BROKERS = {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}

ADMIN_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("topic", "create", "orders"),
    ("topic", "update", "orders", "--queues", "5"),
    ("topic", "list"),
    ("topic", "describe", "orders"),
    ("topic", "route", "orders"),
    ("topic", "status", "orders"),
    ("group", "create", "billing"),
    ("group", "update", "billing", "--retries", "3"),
    ("group", "list"),
    ("group", "describe", "billing"),
    ("group", "reset", "billing", "-t", "orders", "--to", "earliest", "--yes"),
    ("group", "skip", "billing", "-t", "orders", "--yes"),
    ("group", "clone", "billing", "other", "--yes"),
    ("message", "by-key", "orders", "K"),
    ("message", "by-time", "orders", "--since", "15m"),
    ("message", "by-offset", "orders", "0", "0"),
    ("message", "get", "7F0000010000000000000000000000000000", "-t", "orders"),
    ("message", "trace", "7F0000010000000000000000000000000000"),
    ("dlq", "list"),
    ("dlq", "show", "billing"),
    ("dlq", "resend", "billing", "--all", "--yes"),
    ("dlq", "drop", "billing", "--yes"),
    ("delay", "list"),
    ("delay", "cancel", "7F0000010000000000000000000000000000", "-y"),
    ("cluster", "list"),
    ("cluster", "brokers"),
    ("cluster", "status"),
    ("group", "delete", "billing", "--yes"),
    ("topic", "delete", "orders", "--yes"),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Every request that reaches a broker or a name server, but those of brokers."""
    heard: list[Command] = []
    for kind in (BrokerSession, NameserverSession):

        def spy(session: Any, command: Command, handle: Any = kind.handle) -> None:
            if command.code not in OF_BROKERS:
                heard.append(command)
            handle(session, command)

        monkeypatch.setattr(kind, "handle", spy)
    return heard


@pytest.mark.parametrize("command", ADMIN_COMMANDS, ids=" ".join)
async def test_every_request_of_every_admin_command_is_signed(
    onelog: Run,
    cluster: LiveCluster,
    asked: list[Command],
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if command[:2] not in (("topic", "create"), ("group", "create")):
        assert (await onelog("topic", "create", "orders")).code == 0
        assert (await onelog("group", "create", "billing")).code == 0
        await cluster.send("orders", b"x", KEYS="K")
    asked.clear()
    (tmp_path / "secret").write_text("hush-hush\n")
    monkeypatch.setenv("ONELOG_ACCESS_KEY", "ops")
    monkeypatch.setenv("ONELOG_SECRET_KEY_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("ONELOG_SECURITY_TOKEN", "psst")
    ended = await onelog(*command)
    assert "No such" not in ended.err
    assert asked
    credentials = client_options(
        {**GIVEN, "access_key": "ops", "secret_key": "hush-hush", "security_token": "psst"}
    )["credentials"]
    for each in asked:
        assert each.ext == credentials.sign(each.ext, each.body), each.code
    assert "hush" not in ended.out + ended.err
    assert "psst" not in ended.out + ended.err


async def test_admin_commands_verify_whom_they_talk_to(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "other").mkdir()
    cert_path, key_path = write_self_signed(tmp_path / "ours", ("localhost", "127.0.0.1"))
    elsewhere, _ = write_self_signed(tmp_path / "other", ("localhost", "127.0.0.1"))
    async with live_cluster(
        tmp_path,
        tls__mode="enforcing",
        tls__cert_path=str(cert_path),
        tls__key_path=str(key_path),
    ) as cluster:
        at = ("cluster", "status", "-n", cluster.addresses)
        assert (await run_beside(*at, "--tls-ca", str(cert_path))).code == 0
        assert (await run_beside(*at, "--tls")).code == 0
        refused = await run_beside(*at, "--tls-ca", str(elsewhere))
        assert refused.code == 2
        assert "certificate verify failed" in refused.err
        assert (await run_beside(*at)).code == 2  # Plain text.


async def test_a_certificate_for_another_host_is_refused_unless_that_is_allowed(
    tmp_path: Path,
) -> None:
    cert_path, key_path = write_self_signed(tmp_path, ("example.org",))
    async with live_cluster(
        tmp_path, tls__cert_path=str(cert_path), tls__key_path=str(key_path), brokers=0
    ) as cluster:
        at = ("cluster", "list", "-n", cluster.addresses, "--tls-ca", str(cert_path))
        refused = await run_beside(*at)
        assert refused.code == 2
        assert "not valid for '127.0.0.1'" in refused.err
        allowed = await run_beside(*at, "--no-tls-hostname")
        assert "verify failed" not in allowed.err


def test_a_client_certificate_is_loaded(tmp_path: Path) -> None:
    cert_path, key_path = write_self_signed(tmp_path)
    options = client_options({**GIVEN, "tls_cert": cert_path, "tls_key": key_path})
    assert isinstance(options["tls"], ssl.SSLContext)


def test_secrets_come_from_files_too(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hush\n")
    (tmp_path / "token").write_text("psst")
    found = client_options(
        {
            **GIVEN,
            "access_key": "ops",
            "secret_key_file": tmp_path / "key",
            "security_token_file": str(tmp_path / "token"),
        }
    )["credentials"]
    assert (found.secret_key, found.security_token) == ("hush", "psst")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"secret_key": "hush"}, "need each other"),
        ({"access_key": "ops"}, "need each other"),
        ({"security_token": "hush"}, "--security-token needs --access-key"),
        ({"tls_cert": "c.pem"}, "--tls-cert and --tls-key need each other"),
        ({"tls_ca": "none.pem"}, "none.pem: No such file"),
        ({"tls_cert": "c.pem", "tls_key": "k.pem"}, "certificate c.pem, key k.pem: No such file"),
        (
            {"access_key": "ops", "secret_key": "hush", "secret_key_file": "f"},
            "--secret-key and --secret-key-file exclude each other",
        ),
        (
            {"access_key": "ops", "secret_key_file": "none.txt"},
            "--secret-key-file none.txt: No such file",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_without_secrets(
    given: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OnelogError, match=re.escape(reason)) as refusal:
        client_options({**GIVEN, **given})
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\n", "is empty"),
        (b"\xff\xfe hush", "is no text"),
        (b"hush" * SECRET_BYTES_MAX, "too long"),
    ],
)
def test_a_file_that_has_no_secret_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as refusal:
        client_options({**GIVEN, "access_key": "ops", "secret_key_file": tmp_path / "key"})
    assert "hush" not in str(refusal.value)


def test_a_server_does_not_mind_the_variables_of_commands() -> None:
    assert len(ENVIRONMENT) == 11
    assert load(environ=dict.fromkeys(ENVIRONMENT, "1")).config == load().config
