import os
import ssl
import tempfile
from pathlib import Path
from typing import Any

import pytest

from onelog.config import TlsConfig
from onelog.errors import ConfigError
from onelog.net.tls import Tls, client_context, server_context, write_self_signed


def test_modes_say_who_gets_tls() -> None:
    modes = [Tls(TlsConfig(mode=m)) for m in ("disabled", "permissive", "enforcing")]
    assert [tls.is_enabled for tls in modes] == [False, True, True]
    assert [tls.is_required for tls in modes] == [False, False, True]


async def test_a_self_signed_certificate_is_made_once_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tls = Tls(TlsConfig(mode="permissive"))
    assert await tls.context() is await tls.context()
    assert os.listdir(tmp_path) == []


async def test_a_new_certificate_is_used_after_a_reload_and_a_bad_one_is_not(
    certificate: tuple[Path, Path],
) -> None:
    tls = Tls(TlsConfig(mode="permissive"))
    first = await tls.context()
    cert, key = certificate
    good = TlsConfig(mode="permissive", cert_path=str(cert), key_path=str(key))
    await tls.reload(good)
    second = await tls.context()
    assert second is not first
    with pytest.raises(ConfigError):
        await tls.reload(TlsConfig(mode="permissive", cert_path="/nowhere", key_path="/nowhere"))
    assert await tls.context() is second


def test_the_key_is_for_its_owner_only(tmp_path: Path) -> None:
    _, key = write_self_signed(tmp_path)
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls.cert_path .*No such file"):
        server_context(tmp_path / "none.pem", tmp_path / "none.key")
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"tls.cert_path"):
        server_context(tmp_path / "bad.pem", tmp_path / "bad.pem")


def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    context = server_context(*write_self_signed(tmp_path))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_client_checks_the_server_only_if_it_has_something_to_check_against(
    tmp_path: Path,
) -> None:
    cert, _ = write_self_signed(tmp_path)
    assert client_context().verify_mode == ssl.CERT_NONE
    assert client_context(cert).verify_mode == ssl.CERT_REQUIRED


def settings(folder: Path) -> TlsConfig:
    return TlsConfig(cert_path=str(folder / "cert.pem"), key_path=str(folder / "key.pem"))


async def test_files_that_are_replaced_are_used(tmp_path: Path) -> None:
    write_self_signed(tmp_path)
    tls = Tls(settings(tmp_path), look_seconds=0)
    first = await tls.context()
    assert await tls.context() is first
    write_self_signed(tmp_path)
    second = await tls.context()
    assert second is not first
    assert await tls.context() is second


async def test_files_are_not_looked_at_for_every_connection(tmp_path: Path) -> None:
    write_self_signed(tmp_path)
    tls = Tls(settings(tmp_path), look_seconds=3600)
    first = await tls.context()
    write_self_signed(tmp_path)
    assert await tls.context() is first


async def test_new_files_that_are_no_good_are_said_once_and_the_old_ones_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert_path, key_path = write_self_signed(tmp_path)
    tls = Tls(settings(tmp_path), look_seconds=0)
    first = await tls.context()
    (tmp_path / "next").mkdir()
    next_cert, next_key = write_self_signed(tmp_path / "next")
    next_cert.rename(cert_path)  # The key comes later, as it does when people copy files.
    for _ in range(3):
        assert await tls.context() is first
    assert caplog.text.count("the key does not belong to the certificate") == 1
    next_key.rename(key_path)
    second = await tls.context()
    assert second is not first
    key_path.unlink()
    assert await tls.context() is second
    assert "No such file" in caplog.text


async def test_files_that_are_no_good_from_the_start_are_refused(tmp_path: Path) -> None:
    tls = Tls(settings(tmp_path))
    with pytest.raises(ConfigError, match="No such file"):
        await tls.open()
    ca_path = tmp_path / "ca.pem"
    ca_path.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"ca\.pem: that is no PEM file with a certificate"):
        await Tls(TlsConfig(outgoing="on", ca_path=str(ca_path))).open()


async def test_others_are_called_with_tls_if_we_demand_it_ourselves(tmp_path: Path) -> None:
    cert_path, _ = write_self_signed(tmp_path)

    async def called(mode: Any, outgoing: Any, ca_path: str = "") -> ssl.SSLContext | None:
        config = TlsConfig(mode=mode, outgoing=outgoing, ca_path=ca_path)
        return await Tls(config).client_context()

    assert await called("permissive", "auto") is None
    assert await called("enforcing", "off") is None
    for mode, outgoing in (("enforcing", "auto"), ("disabled", "on")):
        context = await called(mode, outgoing)
        assert context is not None
        assert context.verify_mode == ssl.CERT_NONE
        context = await called(mode, outgoing, str(cert_path))
        assert context is not None
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname


def test_a_key_with_a_passphrase_is_refused_instead_of_asked_for(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    cert_path, key_path = write_self_signed(tmp_path)
    key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hush"),
        )
    )
    with pytest.raises(ConfigError, match="the key is encrypted; give one without a passphrase"):
        server_context(cert_path, key_path)
