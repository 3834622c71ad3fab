"""Background jobs survive what goes wrong in them, and say so once."""

import asyncio
import logging

import pytest

from onelog.errors import StoreFullError
from onelog.jobs import Job


def test_an_exception_leaves_the_block_but_does_not_pass_it() -> None:
    job = Job("the cleaner")
    with job:
        raise ZeroDivisionError
    assert job.failed
    with job:
        pass
    assert not job.failed


def test_the_first_failure_is_logged_with_its_traceback_and_the_tenth_as_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job("the cleaner")
    for _ in range(99):
        with job:
            raise OSError(24, "Too many open files")
    first, tenth = caplog.records
    assert first.getMessage() == "the cleaner failed, and is tried again"
    assert first.exc_info is not None
    assert first.exc_info[0] is OSError
    assert "the cleaner failed 10 times in a row" in tenth.getMessage()
    assert tenth.exc_info is None


def test_an_error_that_says_what_to_do_needs_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Job("the cleaner"):
        raise StoreFullError("free some space")
    assert [record.getMessage() for record in caplog.records] == [
        "the cleaner failed, and is tried again: free some space"
    ]
    assert caplog.records[0].exc_info is None


def test_that_it_works_again_is_said_once_and_the_next_failure_is_a_first_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job("the cleaner")
    for number in range(5):
        with job:
            if number < 3:
                raise ValueError(number)
    with job:
        raise KeyError("x")
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert said == [
        (logging.ERROR, "the cleaner failed, and is tried again"),
        (logging.WARNING, "the cleaner works again, after 3 failures"),
        (logging.ERROR, "the cleaner failed, and is tried again"),
    ]


async def test_a_cancelled_task_ends() -> None:
    job = Job("the waiter")

    async def wait_for_ever() -> None:
        while True:
            with job:
                await asyncio.Event().wait()

    task = asyncio.ensure_future(wait_for_ever())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not job.failed
