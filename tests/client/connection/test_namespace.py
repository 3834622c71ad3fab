"""Namespaces: the rules of RocketMQ's clients."""

import pytest

from onelog.client.connection.instance import unwrapped, wrapped


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%billing", "%RETRY%shop%billing"),
        ("%DLQ%billing", "%DLQ%shop%billing"),
        ("shop%orders", "shop%orders"),
    ],
)
def test_names_get_the_namespace_in_front_but_behind_a_mark(name: str, full: str) -> None:
    assert wrapped("shop", name) == full
    assert unwrapped("shop", full) == name.replace("shop%", "")


@pytest.mark.parametrize(
    "name",
    ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "CID_RMQ_SYS_TRANS", "C_REPLY_TOPIC"],
)
def test_what_is_the_systems_has_no_namespace(name: str) -> None:
    assert wrapped("shop", name) == name
    assert unwrapped("shop", name) == name


def test_without_a_namespace_names_stay_as_they_are() -> None:
    assert wrapped("", "orders") == "orders"
    assert unwrapped("", "shop%orders") == "shop%orders"


def test_another_namespace_is_not_taken_for_ones_own() -> None:
    assert unwrapped("shop", "other%orders") == "other%orders"
