"""`onelog config`: every value and where it came from."""

from pathlib import Path

import pytest

from onelog.config_sources import SETTINGS
from tests.commands.running import run


def test_every_setting_is_shown_with_its_source_and_help() -> None:
    ended = run("config", "--json")
    rows = {row["key"]: row for row in ended.document}
    assert rows.keys() == SETTINGS.keys()
    assert rows["broker.port"] == {
        "key": "broker.port",
        "value": 10911,
        "source": "default",
        "default": 10911,
        "accepts": "a whole number from 0 to 65535",
        "reloadable": False,
        "environment": "ONELOG_BROKER_PORT",
        "help": SETTINGS["broker.port"].help,
    }
    shown = run("config")
    assert (shown.code, shown.err) == (0, "")
    assert all(key in shown.out for key in SETTINGS)


def test_each_source_beats_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "onelog.toml"
    path.write_text('[broker]\nport = 1001\nname = "from-file"\n\n[store]\nflush = "sync"\n')
    monkeypatch.setenv("ONELOG_BROKER_PORT", "1002")
    monkeypatch.setenv("ONELOG_STORE_FLUSH", "async")
    ended = run("config", "--json", "--config", str(path), "--set", "store.flush=sync")
    rows = {row["key"]: (row["value"], row["source"]) for row in ended.document}
    assert rows["broker.name"] == ("from-file", f"file {path}")
    assert rows["broker.port"] == (1002, "environment ONELOG_BROKER_PORT")
    assert rows["store.flush"] == ("sync", "flag")
    assert rows["nameserver.port"] == (9876, "default")
    changed = run("config", "--json", "--changed", "--config", str(path)).document
    assert {row["key"] for row in changed} == {"broker.name", "broker.port", "store.flush"}


def test_the_file_may_be_named_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "onelog.toml"
    path.write_text("[broker]\nport = 1001\n")
    monkeypatch.setenv("ONELOG_CONFIG", str(path))
    monkeypatch.setenv("ONELOG_NAMESERVER", "127.0.0.1:9876")
    (row,) = run("config", "--json", "broker.port").document
    assert row["value"] == 1001


def test_keys_and_sections_can_be_picked() -> None:
    rows = run("config", "--json", "tls", "broker.port").document
    assert [row["key"] for row in rows] == [
        "tls.mode",
        "tls.cert_path",
        "tls.key_path",
        "tls.client_ca_path",
        "tls.client_auth",
        "tls.outgoing",
        "tls.ca_path",
        "tls.check_hostname",
        "broker.port",
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("broker.prot",), "did you mean 'broker.port'?"),
        (("--set", "broker.prot=1"), "did you mean 'broker.port'?"),
        (("--set", "broker.port=x"), "broker.port = 'x' (flag) is not accepted"),
        (("--set", "broker.port"), "write it as key=value"),
        (("--config", "no-such-file.toml"), "no-such-file.toml"),
    ],
)
def test_nonsense_ends_with_2_and_says_what_would_do(words: tuple[str, ...], reason: str) -> None:
    ended = run("config", *words)
    assert (ended.code, ended.out) == (2, "")
    assert reason in ended.err
