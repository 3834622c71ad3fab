"""Messages by the times that their senders gave them."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.core.cursors.times import Dated, first_since, latest
from onelog.message import NewMessage
from onelog.record.forms import Form, kafka
from onelog.record.forms.neutral import Neutral
from tests.core.world import World

NOW_MS = 1_700_000_000_000
"""When the world begins; nobody's messages are from later."""


def batch(times: list[int], queue_id: int) -> NewMessage:
    body = kafka.from_neutral([Neutral(None, b"x", (), each) for each in times])
    return NewMessage(
        "orders",
        queue_id,
        body,
        sys_flag=Form.KAFKA.sys_flag,
        born_ms=max(times),
        inner_count=len(times),
    )


RUNS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 50), min_size=1, max_size=4)), max_size=6
)


@pytest.fixture
def queue_ids() -> "list[int]":
    return []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=RUNS, time_ms=st.integers(0, 55))
def test_the_first_message_of_a_time_and_the_latest_of_all(
    world: World, queue_ids: list[int], runs: list[tuple[bool, list[int]]], time_ms: int
) -> None:
    queue_id = len(queue_ids)
    queue_ids.append(queue_id)
    all_times: list[int] = []
    for is_batch, times in runs:
        if is_batch:
            world.store.append([batch(times, queue_id)])
        else:
            world.store.append(
                [NewMessage("orders", queue_id, b"x", born_ms=each) for each in times]
            )
        all_times += times
    expected = next((Dated(at, each) for at, each in enumerate(all_times) if each >= time_ms), None)
    assert first_since(world.store, "orders", queue_id, time_ms) == expected
    last = max(all_times, default=None)
    found = latest(world.store, "orders", queue_id)
    assert found == (None if last is None else Dated(all_times.index(last), last))


def test_what_says_how_a_transaction_ended_has_no_time(world: World) -> None:
    marker = kafka.control_batch(1, 0, 99, commit=True)
    form = Form.KAFKA.sys_flag
    world.store.append([NewMessage("orders", 0, marker, sys_flag=form), batch([5, 7], 0)])
    assert latest(world.store, "orders", 0) == Dated(2, 7)
    assert first_since(world.store, "orders", 0, 8) is None
