"""RocketMQ's own client with TLS on, against a name server and a broker that demand it."""

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.net.tls import LOOK_SECONDS, client_context
from tests.e2e.certificates import Authority
from tests.e2e.java_clients import SHORT_JVM, Facts, Scenario, mqadmin
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError, wait_until
from tests.e2e.remoting_probe import call, has_route, is_answering
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

VERSION = "5.5.0"
UPDATE_BROKER_CONFIG = 25


class LockedPeer(OnelogPeer):
    """OneLog with a certificate, which speaks to nobody in plain text."""

    def __init__(self, folder: Path, authority: Authority, mode: str = "enforcing") -> None:
        folder.mkdir()
        self.cert_path, self.key_path = folder / "server.pem", folder / "server.key"
        authority.write(self.cert_path, self.key_path)
        settings = {
            "ONELOG_TLS_MODE": mode,
            "ONELOG_TLS_CERT_PATH": str(self.cert_path),
            "ONELOG_TLS_KEY_PATH": str(self.key_path),
            "ONELOG_TLS_CA_PATH": str(authority.ca_path),
        }
        super().__init__(folder, settings=settings, tls=client_context(authority.ca_path))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority", "ours")


@pytest.fixture
def locked(tmp_path: Path, authority: Authority) -> Iterator[LockedPeer]:
    with LockedPeer(tmp_path / "server", authority) as running:
        yield running


def verifying(home: Path, authority: Authority) -> tuple[str, ...]:
    """What RocketMQ's client is told so that it encrypts, and believes in this authority only."""
    settings = home / f"{authority.ca_path.parent.name}-tls.properties"
    settings.write_text(
        f"tls.test.mode.enable=false\ntls.client.authServer=true\n"
        f"tls.client.trustCertPath={authority.ca_path}\n"
    )
    return ("-Dtls.enable=true", f"-Dtls.config.file={settings}")


def run(
    home: Path, server: OnelogPeer, name: str, jvm: tuple[str, ...] = (), **arguments: object
) -> Facts:
    """What a scenario says at its end."""
    options = (*SHORT_JVM, *jvm)
    with Scenario(home, VERSION, name, server.nameservers, options, **arguments) as scenario:
        return scenario.wait_for("done", 100)


def test_a_java_client_with_tls_does_everything_where_tls_is_demanded(
    tmp_path: Path, locked: LockedPeer, authority: Authority
) -> None:
    options = verifying(tmp_path, authority)
    done = run(tmp_path, locked, "smoke", options, topic="smoke")
    ways = ("concurrent", "orderly", "broadcasting", "stored", "lite_pull")
    assert {way: done[way] for way in ways} == dict.fromkeys(ways, 50)
    shown = mqadmin(tmp_path, locked.nameservers, "clusterList", options=options)
    assert locked.broker_address in shown


def test_a_java_client_in_plain_text_is_turned_away_where_tls_is_demanded(
    tmp_path: Path, locked: LockedPeer
) -> None:
    with pytest.raises(ChildError, match=r"failed|ended early"):
        run(tmp_path, locked, "sync", topic="plain", messages=1)


def test_a_java_client_that_believes_in_another_authority_does_not_connect(
    tmp_path: Path, locked: LockedPeer
) -> None:
    options = verifying(tmp_path, Authority(tmp_path / "other", "other"))
    with pytest.raises(ChildError, match=r"failed|ended early"):
        run(tmp_path, locked, "sync", options, topic="other", messages=1)


@pytest.mark.parametrize("with_tls", [True, False])
def test_java_clients_with_and_without_tls_share_the_ports_of_a_permissive_server(
    tmp_path: Path, authority: Authority, with_tls: bool
) -> None:
    with LockedPeer(tmp_path / "server", authority, "permissive") as server:
        options = verifying(tmp_path, authority) if with_tls else ()
        done = run(tmp_path, server, "sync", options, topic="shared", messages=20)
        assert (done["sent_ok"], done["stored"], done["wrong"]) == (20, 20, [])


@pytest.mark.parametrize("how", ["files", "settings"])
def test_a_renewed_certificate_is_shown_to_new_java_clients_and_old_ones_go_on(
    tmp_path: Path, locked: LockedPeer, authority: Authority, how: str
) -> None:
    renewed = Authority(tmp_path / "renewed", "renewed")
    trusting_old = verifying(tmp_path, authority)
    believed = client_context(authority.ca_path)
    with Scenario(
        tmp_path,
        VERSION,
        "paced",
        locked.nameservers,
        (*SHORT_JVM, *trusting_old),
        topic="paced",
        rate=50,
        threads=4,
        warm_up_seconds=1,
        seconds=15,
    ) as paced:
        wait_until(lambda: has_route(locked.nameservers, "paced", believed), "a first message", 60)
        _renew(locked, renewed, believed, how)
        # Settings of the name server do not change while it runs: there, only files can.
        options = verifying(tmp_path, renewed) if how == "files" else ("-Dtls.enable=true",)
        done = run(tmp_path / "new", locked, "sync", options, topic="renewed", messages=20)
        assert (done["sent_ok"], done["stored"]) == (20, 20)
        assert _is_shown(locked.broker_address, renewed)
        assert not _is_shown(locked.broker_address, authority)
        ended = paced.wait_for("done")
    assert (ended["sends"], ended["failed"]) == (15 * 50, 0)


class LockedRocketmq(RocketmqPeer):
    """RocketMQ with the certificate that it makes for itself, and with TLS only."""

    def _spawn(self, main: str, config: Path, options: tuple[str, ...]) -> None:
        super()._spawn(main, config, (*options, "-Dtls.server.mode=enforcing"))


def test_a_broker_registers_with_rocketmqs_name_server_where_that_demands_tls(
    tmp_path: Path,
) -> None:
    names = LockedRocketmq(tmp_path / "names")
    names.start_nameserver()
    try:
        wait_until(lambda: is_answering(names.nameservers, client_context()), "a name server", 60)
        with OnelogPeer(
            tmp_path / "broker",
            nameservers=names.nameservers,
            settings={"ONELOG_TLS_OUTGOING": "on"},
            tls=client_context(),
        ) as server:
            assert has_route(names.nameservers, tls=client_context())
            assert not has_route(names.nameservers)  # Not in plain text.
            done = run(tmp_path, server, "sync", ("-Dtls.enable=true",), topic="mixed", messages=20)
            assert (done["sent_ok"], done["stored"]) == (20, 20)
    finally:
        names.close()


def _renew(locked: LockedPeer, renewed: Authority, believed: ssl.SSLContext, how: str) -> None:
    if how == "files":
        renewed.write(locked.cert_path, locked.key_path)
        time.sleep(LOOK_SECONDS)  # Sooner, the files need not be looked at.
        return
    cert_path, key_path = locked.folder / "next.pem", locked.folder / "next.key"
    renewed.write(cert_path, key_path)
    lines = f"tls.cert_path={cert_path}\ntls.key_path={key_path}\n".encode()
    answer = call(locked.broker_address, UPDATE_BROKER_CONFIG, {}, lines, tls=believed)
    assert answer.code == 0, answer.remark


def _is_shown(address: str, authority: Authority) -> bool:
    """Whether new clients of this address are shown a certificate of this authority."""
    try:
        call(address, 105, {"topic": "x"}, tls=client_context(authority.ca_path))
    except ssl.SSLError:
        return False
    return True
