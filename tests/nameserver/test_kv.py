from pathlib import Path

import pytest

from onelog.errors import ConfigError, InvalidRequestError, KeyNotFoundError
from onelog.nameserver import kv
from onelog.nameserver.kv import KvConfig, load_kv, save_kv


def test_keys_are_put_read_and_deleted() -> None:
    config = KvConfig()
    config.put("ns", "k", "v")
    config.put("ns", "k", "w")
    assert config.get("ns", "k") == "w"
    assert config.namespace("ns").table == {"k": "w"}
    config.delete("ns", "k")
    config.delete("ns", "k")
    config.delete("no", "k")
    assert config.get("ns", "k") is None
    assert config.namespace("ns").table == {}


def test_a_value_takes_the_place_of_the_one_that_was_expected_or_none() -> None:
    config = KvConfig()
    config.put("ns", "k", "v", expected="")
    for expected in ("", "other"):
        with pytest.raises(InvalidRequestError, match="another than expected"):
            config.put("ns", "k", "w", expected)
    config.put("ns", "k", "w", expected="v")
    assert config.get("ns", "k") == "w"


def test_a_namespace_has_another_version_after_each_change_and_each_start() -> None:
    config = KvConfig()
    seen = [config.version("ns")]
    config.put("ns", "k", "v")
    seen.append(config.version("ns"))
    config.put("other", "k", "v")
    assert config.version("ns") == seen[-1]
    config.delete("ns", "k")
    seen.append(config.version("ns"))
    config.delete("ns", "k")
    assert config.version("ns") == seen[-1]
    assert len({*seen, KvConfig().version("ns")}) == 4


def test_a_namespace_that_was_never_used_is_not_found() -> None:
    with pytest.raises(KeyNotFoundError, match="No config item, Namespace: ns"):
        KvConfig().namespace("ns")


def test_a_file_holds_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "kvConfig.json"
    config = KvConfig()
    config.put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4")
    save_kv(path, config.to_json())
    assert path.read_bytes() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4"}}}'
    assert load_kv(path).get("ORDER_TOPIC_CONFIG", "orders") == "broker-a:4"
    assert [each.name for each in path.parent.iterdir()] == ["kvConfig.json"]


def test_no_file_is_an_empty_configuration(tmp_path: Path) -> None:
    assert load_kv(tmp_path / "none").to_json() == b'{"configTable":{}}'


def test_a_file_that_is_something_else_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    path.write_text("hello")
    with pytest.raises(ConfigError, match=r"nameserver.kv_path .*kv.json is not a key-value file"):
        load_kv(path)
    with pytest.raises(ConfigError, match=r"nameserver.kv_path .*directory"):
        load_kv(tmp_path)


def test_all_values_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "BYTES_MAX", 10)
    config = KvConfig({"ns": {"old": "1"}})
    config.put("ns", "k", "12345")
    with pytest.raises(InvalidRequestError, match="full"):
        config.put("ns", "l", "")
    config.put("ns", "k", "54321")
    config.delete("ns", "old")
    config.put("ns", "l", "123")
    assert config.get("ns", "l") == "123"
