"""Retry policies as people write them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.commands.times import parse_policy, show_policy
from onelog.errors import InvalidRequestError

SPANS = st.builds(
    "{}{}".format, st.integers(1, 10_000), st.sampled_from(["ms", "s", "m", "h", "d"])
)


def exponential(first: int, longest: int, factor: int) -> dict[str, Any]:
    numbers = {"initial": first, "max": longest, "multiplier": factor}
    return {"type": "EXPONENTIAL", "exponentialRetryPolicy": numbers}


def table(*delays: int) -> dict[str, Any]:
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": list(delays)}}


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("levels", {"type": "CUSTOMIZED"}),
        ("10s", table(10_000, 10_000, 10_000)),
        ("10s, 30s,1m30s", table(10_000, 10_000, 10_000, 30_000, 90_000)),
        ("exponential", exponential(5_000, 7_200_000, 2)),
        ("Exponential:250ms", exponential(250, 7_200_000, 2)),
        ("exponential:1s,10m", exponential(1_000, 600_000, 2)),
        ("exponential:1s,10m,3", exponential(1_000, 600_000, 3)),
    ],
)
def test_policies_are_read(text: str, policy: dict[str, Any]) -> None:
    assert parse_policy(text) == policy
    assert parse_policy(show_policy(policy)) == policy


@pytest.mark.parametrize(
    "text", ["", "10", "10s,,1m", "linear:1s", "exponential:1s,2s,x", "exponential:1s,2s,3,4"]
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_policy(text)


@given(
    st.lists(SPANS, min_size=1, max_size=5).map(",".join)
    | st.builds("exponential:{},{},{}".format, SPANS, SPANS, st.integers(1, 100))
)
def test_what_is_shown_is_read_as_the_same(text: str) -> None:
    policy = parse_policy(text)
    assert parse_policy(show_policy(policy)) == policy


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({}, "levels"),
        ({"type": "EXPONENTIAL"}, "levels"),
        (table(), "levels"),
        (table(7_000), "7s"),
        (table(1_000, 5_000), "5s"),
        (exponential(0, 1_000, 2), "exponential:0ms,1s,2"),
    ],
)
def test_policies_of_others_are_shown_as_what_they_do(policy: dict[str, Any], text: str) -> None:
    assert show_policy(policy) == text
