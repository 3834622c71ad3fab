"""Times in the way of cron."""

from datetime import UTC, datetime

import pytest

from onelog.core.schedule.schedules import parse_cron
from onelog.errors import InvalidRequestError


def at_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("cron", "after", "found"),
    [
        ("* * * * *", "2026-01-01 00:00:30", "2026-01-01 00:01"),
        ("* * * * *", "2026-01-01 00:01", "2026-01-01 00:02"),
        ("0 * * * *", "2026-01-01 00:00", "2026-01-01 01:00"),
        ("*/15 8-10 * * *", "2026-01-01 10:46", "2026-01-02 08:00"),
        ("30 12 31 * *", "2026-02-01 00:00", "2026-03-31 12:30"),
        ("0 0 29 2 *", "2026-03-01 00:00", "2028-02-29 00:00"),
        ("0 0 * * 1", "2026-01-01 00:00", "2026-01-05 00:00"),
        ("0 0 * * 7", "2026-01-01 00:00", "2026-01-04 00:00"),
        ("0 0 13 * 5", "2026-01-03 00:00", "2026-01-09 00:00"),
        ("5,10 0 1 1,12 *", "2026-01-01 00:07", "2026-01-01 00:10"),
        ("59 23 31 12 *", "2026-12-31 23:59", "2027-12-31 23:59"),
        ("0 20/2 * * *", "2026-01-01 21:00", "2026-01-01 22:00"),
    ],
)
def test_the_next_time(cron: str, after: str, found: str) -> None:
    assert parse_cron(cron).next_ms(at_ms(after)) == at_ms(found)


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "a * * * *",
        "*/0 * * * *",
        "5-1 * * * *",
        "0 0 30 2 *",
        "1- * * * *",
        "9" * 500,
    ],
)
def test_what_is_no_entry_is_refused(cron: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_cron(cron)
