"""Listeners are called as they are, between their hooks, in batches if that is wanted."""

import pytest

from onelog.client.consumer.listening import RetryLater, is_coroutine, listening
from onelog.client.hooks import ConsumeContext
from onelog.client.message import ReceivedMessage
from onelog.wire.remoting.trace import Outcome
from tests.client.consuming import offsets, received, several


class Notes:
    """A hook that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int], Outcome, str]] = []

    def before_consume(self, context: ConsumeContext) -> None:
        self.note("before", context)

    def after_consume(self, context: ConsumeContext) -> None:
        self.note("after", context)

    def note(self, when: str, context: ConsumeContext) -> None:
        error = "" if context.error is None else str(context.error)
        self.seen.append((when, offsets(context.messages), context.outcome, error))


class Coroutine:
    async def __call__(self, message: ReceivedMessage) -> None: ...


async def coroutine(message: ReceivedMessage) -> None: ...


def test_it_is_known_which_listeners_have_to_be_awaited() -> None:
    assert is_coroutine(coroutine)
    assert is_coroutine(Coroutine())
    assert not is_coroutine(lambda message: None)
    assert not is_coroutine(print)


def test_without_hooks_nothing_is_put_around_a_listener() -> None:
    def listener(message: ReceivedMessage) -> None: ...

    made = listening(listener, "g", 1, (), 1000)
    assert made.call is listener
    assert not made.is_coroutine


def test_a_batch_stays_whole_whatever_the_listener_does_to_its_list() -> None:
    def listener(batch: list[ReceivedMessage]) -> None:
        batch.clear()

    batch = several(3)
    listening(listener, "g", 8, (), 1000).call(batch)
    assert offsets(batch) == [0, 1, 2]


def test_hooks_see_what_a_listener_gets_and_how_it_ended() -> None:
    notes = Notes()

    def listener(message: ReceivedMessage) -> None:
        if message.offset == 1:
            raise ValueError("broken")
        if message.offset == 2:
            raise RetryLater("not yet")

    call = listening(listener, "g", 1, (notes,), 60_000).call
    call(received(0))
    with pytest.raises(ValueError, match="broken"):
        call(received(1))
    with pytest.raises(RetryLater):
        call(received(2))
    assert notes.seen == [
        ("before", [0], Outcome.SUCCESS, ""),
        ("after", [0], Outcome.SUCCESS, ""),
        ("before", [1], Outcome.SUCCESS, ""),
        ("after", [1], Outcome.EXCEPTION, "broken"),
        ("before", [2], Outcome.SUCCESS, ""),
        ("after", [2], Outcome.FAILED, "not yet"),
    ]


async def test_hooks_wait_for_coroutines() -> None:
    notes = Notes()

    async def listener(batch: list[ReceivedMessage]) -> None:
        notes.seen.append(("inside", offsets(batch), Outcome.SUCCESS, ""))
        if batch[0].offset:
            raise ValueError("broken")

    made = listening(listener, "g", 4, (notes,), 60_000)
    assert made.is_coroutine
    await made.call(several(2))  # type: ignore[misc]
    with pytest.raises(ValueError, match="broken"):
        await made.call([received(3)])  # type: ignore[misc]
    assert [(when, which) for when, which, _, _ in notes.seen] == [
        ("before", [0, 1]),
        ("inside", [0, 1]),
        ("after", [0, 1]),
        ("before", [3]),
        ("inside", [3]),
        ("after", [3]),
    ]
    assert notes.seen[-1][2:] == (Outcome.EXCEPTION, "broken")


async def test_a_plain_function_may_give_something_to_wait_for() -> None:
    notes = Notes()
    made = listening(lambda message: coroutine(message), "g", 1, (notes,), 60_000)
    assert not made.is_coroutine
    await made.call(received(0))  # type: ignore[misc]
    assert [when for when, *_ in notes.seen] == ["before", "after"]


def test_a_listener_that_takes_too_long_is_known_as_such_to_hooks() -> None:
    notes = Notes()
    listening(lambda message: None, "g", 1, (notes,), -1).call(received(0))
    assert notes.seen[-1][2] is Outcome.TIME_OUT
