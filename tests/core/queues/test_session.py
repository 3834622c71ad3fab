"""A consumer session: tags, what a client settles by them, and what a transaction takes back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from onelog.core.queues.session import Acknowledgements, ConsumerSession, settle, when_recorded
from onelog.errors import InvalidRequestError, OnelogError, StoreError


@dataclass(eq=False)
class Queue:
    """What a session does to a queue."""

    done: list[tuple[str, Sequence[int]]] = field(default_factory=list)
    waiting: list[Callable[[Any], None]] = field(default_factory=list)

    def ack(self, positions: Sequence[int]) -> None:
        self.done.append(("ack", positions))

    def requeue(self, positions: Sequence[int], *, counted: bool = True) -> None:
        self.done.append(("requeue" if counted else "return", positions))

    def reject(self, positions: Sequence[int]) -> None:
        self.done.append(("reject", positions))

    def when_recorded(self, callback: Callable[[Any], None]) -> None:
        self.waiting.append(callback)


class Session(ConsumerSession):
    def unknown(self, tag: int) -> OnelogError:
        return InvalidRequestError(f"no {tag}")

    def deliver(self, queue: Queue, *positions: int) -> None:
        for position in positions:
            self.unacked[self.next_tag()] = (queue, position)


def test_one_message_is_meant_or_all_up_to_it_or_all() -> None:
    session, one, two = Session(), Queue(), Queue()
    session.deliver(one, 10, 11)
    session.deliver(two, 5)
    session.deliver(one, 12, 13)
    assert session.ended(2, False) == [(one, 11)]
    assert session.ended(3, True) == [(one, 10), (two, 5)]
    assert list(session.unacked) == [4, 5]
    assert session.ended(0, True) == [(one, 12), (one, 13)]
    assert session.ended(0, True) == []


@pytest.mark.parametrize("multiple", [False, True])
def test_what_is_not_in_flight_cannot_be_settled(multiple: bool) -> None:
    session, queue = Session(), Queue()
    session.deliver(queue, 1)
    session.ended(1, False)
    for tag in (1, 2):
        with pytest.raises(InvalidRequestError, match=f"no {tag}"):
            session.ended(tag, multiple)


def test_what_a_transaction_took_can_be_taken_back_and_is_up_to_later_ones_again() -> None:
    session, queue = Session(), Queue()
    session.deliver(queue, 1, 2, 3)
    taken = session.taken(2, True)
    assert list(session.unacked) == [3]
    session.take_back(taken)
    assert session.ended(3, True) == [(queue, 1), (queue, 2), (queue, 3)]


def test_each_queue_is_told_once() -> None:
    session, one, two = Session(), Queue(), Queue()
    session.deliver(one, 1)
    session.deliver(two, 2)
    session.deliver(one, 3)
    assert settle("reject", session.ended(2, True)) == [one, two]
    assert list(session.giving_back(counted=False)) == [None]
    assert (one.done, two.done) == ([("reject", [1]), ("return", [3])], [("reject", [2])])


def test_acknowledgements_that_arrive_together_are_handed_over_together() -> None:
    acknowledgements, one, two = Acknowledgements(), Queue(), Queue()
    for queue, position in ((one, 1), (two, 2), (one, 3)):
        acknowledgements.add(queue, position)
    acknowledgements.flush()
    acknowledgements.flush()
    assert (one.done, two.done) == ([("ack", [1, 3])], [("ack", [2])])


def test_who_waits_for_several_queues_is_told_when_the_last_is_recorded() -> None:
    one, two, told = Queue(), Queue(), list[OnelogError | None]()
    when_recorded([], told.append)
    assert told == [None]
    when_recorded([one, two], told.append)
    failed = StoreError("full")
    one.waiting[0](failed)
    assert told == [None]
    two.waiting[0](None)
    assert told == [None, failed]
