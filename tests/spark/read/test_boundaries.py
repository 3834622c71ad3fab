"""Beginnings and ends, as people write them."""

import pytest

from onelog.errors import ConfigError
from onelog.spark.read.boundaries import (
    EARLIEST,
    GROUP,
    LATEST,
    Boundary,
    BoundaryKind,
    parse_assignment,
    parse_boundary,
    parse_time,
)


def test_words_are_known_in_any_spelling() -> None:
    assert parse_boundary("startingOffsets", "earliest") == EARLIEST
    assert parse_boundary("startingOffsets", " Latest ") == LATEST
    assert parse_boundary("startingOffsets", "group") == GROUP


@pytest.mark.parametrize(
    ("text", "ms"),
    [("-2h", 7_200_000), ("-1d12h", 129_600_000), ("-90s", 90_000), ("-5ms", 5), ("-1m1s", 61_000)],
)
def test_a_span_counts_back_from_now(text: str, ms: int) -> None:
    assert parse_boundary("startingOffsets", text) == Boundary(BoundaryKind.AGO, ms)
    assert parse_time("startingTimestamp", text) == Boundary(BoundaryKind.AGO, ms)
    assert parse_time("startingTimestamp", text).time_ms(1 << 40) == (1 << 40) - ms
    assert parse_time("startingTimestamp", text).time_ms(0) == 0


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1793528400000", 1_793_528_400_000),
        ("2026-11-01T11:00:00Z", 1_793_530_800_000),
        ("2026-11-01 11:00:00", 1_793_530_800_000),
        ("2026-11-01T12:00:00.250+01:00", 1_793_530_800_250),
        ("2026-11-01", 1_793_491_200_000),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str, ms: int) -> None:
    assert parse_time("endingTimestamp", text) == Boundary(BoundaryKind.TIME, ms)


def test_now_is_a_time() -> None:
    assert parse_time("endingTimestamp", "now").time_ms(77) == 77


def test_offsets_are_given_by_topic_and_queue() -> None:
    text = '{"orders": {"broker-a:0": 5, "1": -2}, "bills": {"b:0": -1}}'
    assert parse_boundary("startingOffsets", text).offsets == {
        "orders": {"broker-a:0": 5, "1": -2},
        "bills": {"b:0": -1},
    }


def test_a_line_of_a_checkpoint_is_good_as_a_beginning() -> None:
    line = '{"incarnations": {"orders": {"b": 1}}, "offsets": {"orders": {"b:0": 7}}}'
    assert parse_boundary("startingOffsets", line).offsets == {"orders": {"b:0": 7}}


def test_a_topic_may_be_called_offsets() -> None:
    found = parse_boundary("startingOffsets", '{"offsets": {"b:0": 7}}')
    assert found.offsets == {"offsets": {"b:0": 7}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yesterday", ["earliest, latest, group", "yesterday", "startingTimestamp"]),
        ("5", ["and not '5'"]),
        ("{", ["not JSON"]),
        ("{}", ["topics in it"]),
        ('{"orders": 5}', ["orders needs offsets by queue"]),
        ('{"orders": {"broker-a": 5}}', ["'broker-a' is no queue of orders", "broker-a:0"]),
        ('{"orders": {"a:0": "5"}}', ["'5' is no offset", "a:0", "orders"]),
        ('{"orders": {"a:0": -3}}', ["-3 is no offset", "-2 is the earliest"]),
        ('{"orders": {"a:0": true}}', ["True is no offset"]),
    ],
)
def test_what_is_no_beginning_is_refused(text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_boundary("startingOffsets", text)
    assert "option startingOffsets" in str(caught.value)
    for part in said:
        assert part in str(caught.value)


def test_the_end_cannot_be_the_earliest() -> None:
    with pytest.raises(ConfigError, match="endingOffsets: queue a:0 of t"):
        parse_boundary("endingOffsets", '{"t": {"a:0": -2}}')


@pytest.mark.parametrize("text", ["soon", "2h", "2026-13-01", "-2w", "99999999999999999999999"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="option startingTimestamp") as caught:
        parse_time("startingTimestamp", text)
    assert text in str(caught.value)


def test_queues_are_assigned_by_name() -> None:
    found = parse_assignment('{"orders": ["broker-a:0", 1, "1"], "bills": ["b:3"]}')
    assert found == {"orders": ("broker-a:0", "1"), "bills": ("b:3",)}


@pytest.mark.parametrize(
    "text", ["[]", "orders", '{"orders": []}', '{"orders": "a:0"}', '{"orders": ["a"]}', "{}"]
)
def test_what_assigns_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="option assign"):
        parse_assignment(text)
