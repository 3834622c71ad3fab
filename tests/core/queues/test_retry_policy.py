from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.queues.retry_policy import DELAY_MS_MAX, parse_policy
from onelog.errors import InvalidGroupError


def exponential(**numbers: Any) -> dict[str, Any]:
    return {"type": "EXPONENTIAL", "exponentialRetryPolicy": numbers}


def customized(*delays: Any) -> dict[str, Any]:
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": list(delays)}}


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"type": None},
        {"type": "CUSTOMIZED"},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {}},
        {"type": "EXPONENTIAL"},
        {"type": "EXPONENTIAL", "customizedRetryPolicy": {"next": [1]}},
    ],
)
def test_a_policy_without_numbers_is_the_table_of_levels(document: dict[str, Any] | None) -> None:
    assert parse_policy(document) is None


def test_delays_of_a_table_begin_at_the_third() -> None:
    policy = parse_policy(customized(1_000, 5_000, 10_000, 30_000))
    assert policy is not None
    assert [policy(times) for times in (-1, 0, 1, 2, 16)] == [10_000, 10_000] + [30_000] * 3
    short = parse_policy(customized(7))
    assert short is not None
    assert [short(times) for times in (0, 5)] == [7, 7]


def test_exponential_delays_grow_up_to_a_limit() -> None:
    policy = parse_policy(exponential(initial=1_000, max=60_000, multiplier=3))
    assert policy is not None
    assert [policy(times) for times in range(6)] == [1_000, 3_000, 9_000, 27_000, 60_000, 60_000]
    usual = parse_policy(exponential())
    assert usual is not None
    assert [usual(times) for times in (0, 1, 10, 1_000)] == [5_000, 10_000, 5_120_000, 7_200_000]


@pytest.mark.parametrize(
    "document",
    [
        {"type": "LINEAR"},
        {"type": 7},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": [1]},
        customized(),
        customized(-1),
        customized("1s"),
        customized(1.5),
        customized(True),
        customized(DELAY_MS_MAX + 1),
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": 5}},
        exponential(initial=-5),
        exponential(multiplier=0),
        exponential(max="2h"),
    ],
)
def test_what_is_no_policy_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidGroupError, match="groupRetryPolicy"):
        parse_policy(document)


@given(
    st.builds(
        exponential,
        initial=st.integers(0, DELAY_MS_MAX),
        max=st.integers(0, DELAY_MS_MAX),
        multiplier=st.integers(1, 1_000_000),
    )
    | st.lists(st.integers(0, DELAY_MS_MAX), min_size=1).map(lambda delays: customized(*delays)),
    st.integers(-10, 1 << 31),
)
def test_every_delay_is_possible(document: dict[str, Any], times: int) -> None:
    policy = parse_policy(document)
    assert policy is not None
    assert 0 <= policy(times) <= DELAY_MS_MAX
