"""Options of consumers: what is usual, what is refused, and with which words."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onelog.client.consumer.settings import ConsumerSettings, consumer_settings
from onelog.client.options import ConsumerOptions
from onelog.errors import ConfigError


def test_without_options_everything_is_as_in_rocketmq() -> None:
    assert consumer_settings({}) == ConsumerSettings()
    usual = ConsumerSettings()
    assert (usual.concurrency, usual.batch_size, usual.start) == (20, 1, "last")
    assert (usual.prefetch_count, usual.prefetch_bytes, usual.prefetch_span) == (
        1000,
        100 << 20,
        2000,
    )
    assert usual.consume_timeout_ms == 15 * 60 * 1000


def test_options_are_taken_over_in_the_units_of_the_code() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made = consumer_settings(
        {
            "model": "broadcasting",
            "offsets_path": "positions.json",
            "start": start,
            "threads": 3,
            "consume_timeout": timedelta(seconds=2),
            "retries_max": 0,
        }
    )
    assert made.broadcasting
    assert made.offsets_path == Path("positions.json")
    assert (made.start, made.concurrency, made.consume_timeout_ms) == (start, 3, 2000)
    assert made.retries_max == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pop": True, "model": "broadcasting"}, "pop and broadcasting"),
        ({"model": "both"}, "not 'both'"),
        ({"threads": 2, "concurrency": 2}, "two names"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"batch_size": -1}, "batch_size must be at least 1"),
        ({"retries_max": -1}, "retries_max must be at least 0"),
        ({"offsets_path": "x"}, "is for broadcasting"),
        ({"start": "middle"}, "not 'middle'"),
        ({"start": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"consume_timeout": 0}, "positive time"),
    ],
)
def test_what_makes_no_sense_is_refused(options: ConsumerOptions, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        consumer_settings(options)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="prefetch_count must be a whole number"):
        consumer_settings({"prefetch_count": "many"})
