import re
import tempfile
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.config import BrokerConfig, Config, StoreConfig, Value
from onelog.config_sources import SETTINGS, Setting, describe, load, value_of
from onelog.errors import ConfigError


def toml_file(folder: Path, text: str) -> Path:
    path = folder / "onelog.toml"
    path.write_text(text)
    return path


def refusal(
    toml_path: Path | None = None,
    environ: dict[str, str] | None = None,
    overrides: dict[str, Value] | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(toml_path, environ, overrides)
    return str(caught.value)


def test_without_any_source_every_value_is_the_default() -> None:
    loaded = load()
    assert loaded.config == Config()
    assert loaded.sources == dict.fromkeys(SETTINGS, "default")
    assert loaded.config.store == StoreConfig()


def test_defaults_are_those_of_rocketmq() -> None:
    config = Config()
    assert (config.broker.port, config.nameserver.port) == (10911, 9876)
    assert (config.broker.cluster, config.broker.register_interval_ms) == ("DefaultCluster", 30_000)
    assert (config.store.segment_bytes, config.store.queue_file_entries) == (1 << 30, 300_000)
    assert (config.broker.pull_bytes_max, config.broker.pull_count_max) == (262_144, 32)


def test_only_loopback_is_listened_on_by_default() -> None:
    assert Config().broker.host == Config().nameserver.host == "127.0.0.1"


def test_a_configuration_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().broker.port = 1  # type: ignore[misc]


def test_a_file_beats_the_default_the_environment_the_file_and_a_flag_everything(
    tmp_path: Path,
) -> None:
    path = toml_file(
        tmp_path,
        '[broker]\nport = 1001\nvip_port = 1002\ncluster = "C"\n[store]\nflush = "sync"\n',
    )
    environ = {"ONELOG_BROKER_PORT": "2001", "ONELOG_BROKER_CLUSTER": "E", "HOME": "/"}
    config, sources = load(path, environ, {"broker.port": "3001"})
    assert (config.broker.port, sources["broker.port"]) == (3001, "flag")
    assert (config.broker.cluster, sources["broker.cluster"]) == (
        "E",
        "environment ONELOG_BROKER_CLUSTER",
    )
    assert (config.broker.vip_port, sources["broker.vip_port"]) == (1002, f"file {path}")
    assert (config.store.flush, sources["store.flush"]) == ("sync", f"file {path}")
    assert (config.broker.name, sources["broker.name"]) == ("broker-a", "default")


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("Yes", True), ("ON", True), ("1", True), ("false", False), ("0", False)],
)
def test_the_environment_says_yes_and_no_in_several_words(text: str, value: bool) -> None:
    loaded = load(environ={"ONELOG_STORE_RECORD_CRC": text})
    assert loaded.config.store.record_crc is value


def test_a_flag_may_be_a_text_or_a_value() -> None:
    overrides: dict[str, Value] = {
        "broker.port": 7,
        "broker.vip_port": "1_000",
        "tls.mode": "permissive",
    }
    config = load(overrides=overrides).config
    assert (config.broker.port, config.broker.vip_port, config.tls.mode) == (7, 1000, "permissive")


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("broker.prot", "broker.port"),
        ("brokr.port", "broker.port"),
        ("flush_pages_min", "store.flush_pages_min"),
        ("nameserver.segment_bytes", "store.segment_bytes"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_suggested(key: str, suggestion: str) -> None:
    said = refusal(overrides={key: "1"})
    assert said == f"unknown setting {key!r} (flag); did you mean {suggestion!r}?"


def test_an_unknown_key_like_no_other_is_refused_without_a_suggestion() -> None:
    assert refusal(overrides={"qqq": "1"}) == "unknown setting 'qqq' (flag)"


def test_an_unknown_variable_is_refused_by_its_name() -> None:
    said = refusal(environ={"ONELOG_BROKER_PROT": "1"})
    assert said == (
        "unknown setting ONELOG_BROKER_PROT (environment); did you mean 'ONELOG_BROKER_PORT'?"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ONELOG_CONFIG", "x.toml"),
        ("PATH", "/bin"),
        ("ONELOGGER", "1"),
        # What Kubernetes sets for services named onelog and onelog-broker.
        ("ONELOG_SERVICE_HOST", "10.0.0.1"),
        ("ONELOG_BROKER_SERVICE_PORT", "10911"),
        ("ONELOG_BROKER_SERVICE_PORT_REMOTING", "10911"),
        ("ONELOG_PORT", "tcp://10.0.0.1:10911"),
        ("ONELOG_BROKER_PORT", "tcp://10.0.0.1:10911"),
        ("ONELOG_BROKER_PORT_10911_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_variables_that_are_no_settings_are_left_alone(name: str, value: str) -> None:
    assert load(environ={name: value}).config == Config()


def test_unknown_sections_and_keys_in_a_file_are_refused(tmp_path: Path) -> None:
    path = toml_file(tmp_path, "[brokr]\nport = 1\n")
    assert refusal(path) == f"unknown section [brokr] (file {path}); did you mean 'broker'?"
    path = toml_file(tmp_path, "[broker]\nprt = 1\n")
    assert (
        refusal(path) == f"unknown setting 'broker.prt' (file {path}); did you mean 'broker.port'?"
    )
    path = toml_file(tmp_path, "broker = 1\n")
    assert "broker" in refusal(path)
    assert "write [broker] above its keys" in refusal(path)


@pytest.mark.parametrize("content", [b"[broker", b"\xff\xfe", b"port = ", b"[a]\n[a]\n"])
def test_a_file_that_is_no_toml_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    assert refusal(path).startswith(f"configuration file {path} is not valid TOML: ")


def test_a_file_that_cannot_be_read_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "absent.toml"
    assert refusal(path) == f"cannot read configuration file {path}: No such file or directory"
    assert refusal(tmp_path) == f"cannot read configuration file {tmp_path}: Is a directory"


@pytest.mark.parametrize(
    ("key", "value", "takes"),
    [
        ("broker.port", 65536, "a whole number from 0 to 65535"),
        ("broker.port", -1, "a whole number from 0 to 65535"),
        ("broker.port", "80.5", "a whole number from 0 to 65535"),
        ("broker.port", "", "a whole number from 0 to 65535"),
        ("broker.port", "9" * 1000, "a whole number from 0 to 65535"),
        ("broker.port", "²", "a whole number from 0 to 65535"),
        ("broker.port", True, "a whole number from 0 to 65535"),
        ("broker.long_poll", "maybe", "true | false"),
        ("broker.long_poll", 1, "true | false"),
        ("store.flush", "fast", "async | sync"),
        ("store.retention_hours", "25", "a text such as '04;16'"),
        ("store.delay_levels", "1s  5s", "a text such as '1s 30s 5m 2h 1d'"),
        ("broker.nameservers", "localhost", "a text such as '10.0.0.1:9876;10.0.0.2:9876'"),
        ("broker.name", "a b", "a text such as 'broker-a'"),
        ("broker.store_path", "", "a text"),
        ("broker.cluster", 5, "a text such as 'DefaultCluster'"),
    ],
)
def test_a_value_that_is_not_accepted_is_named_with_its_key_source_and_limit(
    key: str, value: Value, takes: str
) -> None:
    said = refusal(overrides={key: value})
    assert said == f"{key} = {value!r:.80} (flag) is not accepted; it takes {takes}"


@pytest.mark.parametrize("value", ['"10911"', "10911.0", "true", "[1]", "{a = 1}", "1979-05-27"])
def test_a_file_must_use_the_right_type(tmp_path: Path, value: str) -> None:
    path = toml_file(tmp_path, f"[broker]\nport = {value}\n")
    said = refusal(path)
    assert said.startswith("broker.port = ")
    assert f"(file {path}) is not accepted; it takes a whole number from 0 to 65535" in said


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"store.disk_clean_percent": 86}, "each must be at least the one before"),
        ({"store.disk_refuse_percent": 80}, "each must be at least the one before"),
        (
            {"store.index_entries": 89_478_485, "store.index_slots": 90_000_000},
            "is over 2147483647",
        ),
        ({"broker.host": "0.0.0.0"}, "set broker.advertised_host"),
        ({"broker.host": "::", "broker.advertised_host": "::"}, "set broker.advertised_host"),
        ({"broker.vip_port": 10911}, "the two ports must differ"),
        ({"broker.nameservers": "a:9876;b:65536"}, "a port is at most 65535"),
        ({"net.unread_bytes_max": 1 << 20}, "one large request alone would be too much"),
        ({"tls.cert_path": "c.pem"}, "a certificate needs its key"),
        ({"tls.key_path": "k.pem"}, "a certificate needs its key"),
    ],
)
def test_values_that_do_not_fit_together_are_refused_with_all_keys(
    overrides: dict[str, Value], reason: str
) -> None:
    said = refusal(overrides=overrides)
    assert reason in said
    for key, value in overrides.items():
        assert f"{key} = {value!r} (flag)" in said


def test_listening_everywhere_is_fine_once_clients_are_told_where() -> None:
    overrides: dict[str, Value] = {"broker.host": "0.0.0.0", "broker.advertised_host": "10.0.0.5"}
    assert load(overrides=overrides).config.broker.client_host == "10.0.0.5"
    assert BrokerConfig().client_host == "127.0.0.1"


def test_name_servers_are_read_as_addresses() -> None:
    broker = load(overrides={"broker.nameservers": "ns1:9876;[::1]:9877"}).config.broker
    assert broker.nameserver_addresses == (("ns1", 9876), ("::1", 9877))
    assert load(overrides={"broker.nameservers": ""}).config.broker.nameserver_addresses == ()


@pytest.mark.parametrize(
    ("port", "vip_port", "second"),
    [(10911, -1, 10909), (10911, 0, None), (10911, 5, 5), (0, -1, None), (2, -1, None)],
)
def test_the_second_port_lies_two_below_unless_told_otherwise(
    port: int, vip_port: int, second: int | None
) -> None:
    assert BrokerConfig(port=port, vip_port=vip_port).second_port == second


def test_describe_shows_every_setting_once_in_the_order_of_declaration() -> None:
    rows = describe(load(environ={"ONELOG_TLS_MODE": "enforcing"}))
    declared = [
        f"{section.name}.{each.name}"
        for section in fields(Config)
        for each in fields(getattr(Config(), section.name))
    ]
    assert [row["key"] for row in rows] == declared
    mode = next(row for row in rows if row["key"] == "tls.mode")
    assert (mode["value"], mode["default"], mode["source"]) == (
        "enforcing",
        "permissive",
        "environment ONELOG_TLS_MODE",
    )
    assert mode["accepts"] == "disabled | permissive | enforcing"
    assert mode["environment"] == "ONELOG_TLS_MODE"


def test_a_setting_that_has_moved_is_still_known_by_its_old_name(tmp_path: Path) -> None:
    file = tmp_path / "onelog.toml"
    file.write_text("[broker]\nconnections_max = 7\n")
    assert load(file).config.net.connections_max == 7
    environ = {"ONELOG_BROKER_CONNECTIONS_MAX": "8"}
    assert load(file, environ).config.net.connections_max == 8
    loaded = load(file, environ, {"broker.connections_max": 9})
    assert loaded.config.net.connections_max == 9
    assert loaded.sources["net.connections_max"] == "flag"
    assert value_of(loaded.config, "broker.connections_max") == 9


def test_value_of_an_unknown_key_is_refused() -> None:
    assert value_of(Config(), "broker.port") == 10911
    with pytest.raises(ConfigError, match=re.escape("'broker.pork' (asked for); did you mean")):
        value_of(Config(), "broker.pork")


@pytest.mark.parametrize("known", SETTINGS.values(), ids=lambda known: known.key)
def test_every_setting_has_help_limits_and_an_acceptable_default(known: Setting) -> None:
    assert known.help
    assert not known.help.endswith(".")
    assert (known.kind is int) == (known.least is not None) == (known.most is not None)
    assert known.kind is not str or known.choices or known.pattern
    assert value_of(load(overrides={known.key: known.default}).config, known.key) == known.default
    shown = str(known.default).lower() if known.kind is bool else str(known.default)
    loaded = load(environ={known.environment: shown})
    assert value_of(loaded.config, known.key) == known.default
    assert loaded.sources[known.key] == f"environment {known.environment}"


def test_no_two_settings_share_a_variable() -> None:
    assert len({known.environment for known in SETTINGS.values()}) == len(SETTINGS)


values = st.one_of(st.text(), st.integers(), st.booleans())


@given(st.dictionaries(st.sampled_from(sorted(SETTINGS)) | st.text(), values, max_size=4))
def test_any_flags_load_within_limits_or_raise_config_error(overrides: dict[str, Value]) -> None:
    try:
        config = load(overrides=overrides).config
    except ConfigError:
        return
    for key in overrides:
        known, value = SETTINGS[key], value_of(config, key)
        assert type(value) is known.kind
        if known.least is not None and known.most is not None:
            assert known.least <= int(value) <= known.most


@given(st.binary(max_size=200))
def test_any_file_loads_or_raises_config_error(content: bytes) -> None:

    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(content)
        file.flush()
        try:
            load(file.name)
        except ConfigError:
            return
