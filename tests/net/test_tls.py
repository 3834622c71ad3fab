import os
import ssl
import tempfile
from pathlib import Path

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
