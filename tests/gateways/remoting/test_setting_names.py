"""Our settings under RocketMQ's names."""

import pytest

from onelog.config import SETTINGS, Config, StoreConfig, load
from onelog.errors import ConfigError
from onelog.gateways.remoting.setting_names import NAMES, as_properties, as_settings


def test_every_name_stands_for_a_setting_that_exists_and_no_two_for_one() -> None:
    keys = [key for key, _ in NAMES.values()]
    assert set(keys) <= set(SETTINGS)
    assert len(set(keys)) == len(keys)


def test_values_are_shown_in_rocketmqs_units_and_words() -> None:
    shown = as_properties(Config(store=StoreConfig(flush="sync", retention_ms=90 * 60_000)))
    assert shown["flushDiskType"] == "SYNC_FLUSH"
    assert shown["fileReservedTime"] == "1.5"
    assert shown["mappedFileSizeConsumeQueue"] == "6000000"
    assert shown["enablePropertyFilter"] == "true"
    assert shown["diskMaxUsedSpaceRatio"] == "75"
    assert shown["messageDelayLevel"].startswith("1s 5s")
    assert (shown["brokerRole"], shown["haListenPort"]) == ("ASYNC_MASTER", "10912")
    assert (shown["store.flush"], shown["broker.vip_port"]) == ("sync", "-1")


def test_what_is_shown_can_be_read_back() -> None:
    config = load(overrides={"store.flush": "sync", "broker.trace": False}).config
    shown = as_properties(config)
    changes = as_settings({name: shown[name] for name in NAMES})
    assert load(overrides=dict(changes)).config == config


def test_names_that_stand_for_nothing_are_refused() -> None:
    for properties in (
        {"rocketmqHome": "x"},
        {"brokerIP1": "10.0.0.1"},
        {"": ""},
        {"fileReservedTime": "-1"},
        {"fileReservedTime": "1_0"},
        {"traceOn": "true", "broker.trace": "false"},
    ):
        with pytest.raises(ConfigError):
            as_settings(properties)
