"""Our settings under RocketMQ's names."""

import pytest

from onelog.config import Config, StoreConfig
from onelog.config_sources import SETTINGS, load
from onelog.errors import ConfigError
from onelog.gateways.remoting.admin import setting_names
from onelog.gateways.remoting.admin.setting_names import (
    NAMES,
    PROTECTIONS,
    ROCKETMQ_SETTINGS,
    as_properties,
    as_settings,
)


@pytest.fixture(autouse=True)
def nothing_ignored_yet() -> None:
    setting_names._ignored.clear()


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


def test_rocketmqs_names_that_are_not_needed_are_accepted_and_said_to_be_ignored_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = {
        "sendMessageThreadPoolNums": "16",
        "osPageCacheBusyTimeOutMills": "1",
        "traceOn": "1",
    }
    assert set(NAMES) <= ROCKETMQ_SETTINGS
    for _ in range(2):
        assert as_settings(changes) == {"broker.trace": "1"}
    assert [record.getMessage() for record in caplog.records] == [
        f"RocketMQ's setting {name!r} is accepted and ignored: OneLog need not have it"
        for name in ("sendMessageThreadPoolNums", "osPageCacheBusyTimeOutMills")
    ]


def test_a_protection_that_would_not_be_there_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="brokerPermission would not be obeyed"):
        as_settings({"brokerPermission": "4"})
    assert PROTECTIONS <= ROCKETMQ_SETTINGS


def test_names_that_neither_has_are_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match="neither OneLog nor RocketMQ has a setting 'sendThreads'"
    ):
        as_settings({"traceOn": "true", "sendThreads": "16"})


def test_values_that_cannot_be_and_settings_named_twice_are_refused() -> None:
    for properties in (
        {"": ""},
        {"fileReservedTime": "-1"},
        {"fileReservedTime": "1_0"},
        {"traceOn": "true", "broker.trace": "false"},
    ):
        with pytest.raises(ConfigError):
            as_settings(properties)
