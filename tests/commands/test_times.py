"""Times as people write and read them."""

import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.commands.times import parse_span, parse_time, show_span, show_time
from onelog.errors import InvalidRequestError

NOW_MS = 1_793_528_400_000  # 2026-11-01 10:20:00 UTC
HOUR_MS = 3_600_000


@pytest.fixture
def tokyo() -> Iterator[None]:
    """Nine hours ahead, all year round."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("now", NOW_MS),
        ("earliest", 0),
        ("1793528400123", 1_793_528_400_123),
        ("90s", NOW_MS - 90_000),
        ("-15m", NOW_MS - 900_000),
        ("1h30m", NOW_MS - 5_400_000),
        ("2d", NOW_MS - 172_800_000),
        ("250ms", NOW_MS - 250),
        ("99999d", 0),
        ("2026-11-01T10:20:00Z", NOW_MS),
        ("2026-11-01 12:20:00.250+02:00", NOW_MS + 250),
        (" now ", NOW_MS),
    ],
)
def test_a_time_is_read(text: str, expected_ms: int) -> None:
    assert parse_time(text, NOW_MS) == expected_ms


def test_a_time_without_a_zone_is_local_unless_utc_is_asked_for(tokyo: None) -> None:
    assert parse_time("2026-11-01 10:20:00", NOW_MS) == NOW_MS - 9 * HOUR_MS
    assert parse_time("2026-11-01 10:20", NOW_MS, utc=True) == NOW_MS
    assert parse_time("2026-11-01", NOW_MS, utc=True) == NOW_MS - 10 * HOUR_MS - 1_200_000


def test_times_are_shown_in_local_time_or_utc(tokyo: None) -> None:
    assert show_time(NOW_MS + 7) == "2026-11-01 19:20:00.007"
    assert show_time(NOW_MS + 7, utc=True) == "2026-11-01 10:20:00.007Z"
    assert show_time(0) == show_time(-1) == "-"
    assert show_time(1 << 62) == f"{1 << 62} ms"


@given(st.integers(1, 4_000_000_000_000))
def test_what_is_shown_is_read_as_the_same_time(ms: int) -> None:
    assert parse_time(show_time(ms, utc=True), NOW_MS, utc=True) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "15", "1x", "2026-13-01", "h", "-", "١٥m"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no time: write"):
        parse_time(text, NOW_MS)


def test_a_span_needs_units() -> None:
    assert parse_span("1d2h3m4s5ms") == 93_784_005
    for text in ("", "5", "5x", "1h 2m"):
        with pytest.raises(InvalidRequestError, match="no span of time"):
            parse_span(text)


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "-"),
        (-5, "-"),
        (999, "999 ms"),
        (59_999, "59 s"),
        (61_000, "1 min 1 s"),
        (HOUR_MS + 60_000, "1 h 1 min"),
        (25 * HOUR_MS, "1 d 1 h"),
    ],
)
def test_a_span_is_shown_in_its_two_largest_units(ms: int, shown: str) -> None:
    assert show_span(ms) == shown
