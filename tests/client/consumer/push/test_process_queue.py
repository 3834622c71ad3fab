"""A queue's messages in hand, against a model that keeps a plain set."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.client.consumer.push.pulling import ProcessQueue
from onelog.client.message import ReceivedMessage
from onelog.message import NewMessage
from onelog.record.decode import decode_records
from onelog.record.encode import encode


def fetched(offset: int, size: int = 10) -> ReceivedMessage:
    head, body, tail, _ = encode(NewMessage("t", 0, b"x" * size), offset, 0, 1, False)
    return ReceivedMessage(decode_records(head + bytes(body) + tail)[0], "broker-a")


def test_taking_the_next_message_is_taking_a_list_of_one() -> None:
    one, other = ProcessQueue(5), ProcessQueue(5)
    for offset in (5, 6, 7):
        one.add([fetched(offset)], offset + 1)
        other.add_next(fetched(offset))
    for queue in (one, other):
        queue.finish([5])
    for name in ("next_offset", "committable", "bytes_in_hand", "last_offset", "span"):
        assert getattr(one, name) == getattr(other, name)


class Hands(RuleBasedStateMachine):
    """The model: every offset that was ever handed out and not finished, with its size."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(5)
        self.next = 5
        self.unfinished: dict[int, int] = {}
        self.committed = 5

    @rule(
        steps=st.lists(st.integers(1, 3), max_size=8),
        size=st.integers(1, 50),
        skipped=st.integers(0, 3),
    )
    def fetch(self, steps: list[int], size: int, skipped: int) -> None:
        offsets = []
        at = self.next - 1
        for step in steps:
            at += step
            offsets.append(at)
        self.next = at + 1 + skipped
        added = self.queue.add([fetched(offset, size) for offset in offsets], self.next)
        assert [each.offset for each in added] == offsets
        self.unfinished |= dict.fromkeys(offsets, size)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        done = data.draw(st.lists(st.integers(0, self.next + 2), max_size=6))
        self.queue.finish(done)
        for offset in done:
            self.unfinished.pop(offset, None)

    @rule(data=st.data())
    def finish_what_is_in_hand(self, data: st.DataObject) -> None:
        if self.unfinished:
            done = data.draw(st.lists(st.sampled_from(sorted(self.unfinished)), max_size=6))
            self.queue.finish(done)
            for offset in done:
                self.unfinished.pop(offset, None)

    @invariant()
    def what_is_counted_is_what_is_unfinished(self) -> None:
        assert len(self.queue) == len(self.unfinished)
        assert self.queue.bytes_in_hand == sum(self.unfinished.values())
        assert all(offset in self.queue for offset in self.unfinished)

    @invariant()
    def the_commit_is_the_first_unfinished_and_never_goes_back(self) -> None:
        committable = self.queue.committable
        assert committable == min(self.unfinished, default=self.next)
        assert committable >= self.committed
        self.committed = committable

    @invariant()
    def the_span_reaches_from_the_first_unfinished_on(self) -> None:
        if not self.unfinished:
            assert (self.queue.span, self.queue.last_offset) == (0, -1)
        else:
            assert self.queue.last_offset >= max(self.unfinished)
            assert self.queue.span == self.queue.last_offset - min(self.unfinished)


TestHands = Hands.TestCase


@given(st.integers(0, 10), st.integers(1, 10))
def test_a_batch_that_begins_before_the_wanted_offset_is_cut(start: int, count: int) -> None:
    queue = ProcessQueue(start)
    batch = [fetched(offset) for offset in range(max(0, start - 3), start + count)]
    added = queue.add(batch, start + count)
    assert [each.offset for each in added] == list(range(start, start + count))
    assert len(queue) == count


def test_an_answer_that_points_back_does_not_move_the_queue_back() -> None:
    queue = ProcessQueue(7)
    queue.add([], 3)
    assert queue.next_offset == 7
    assert queue.committable == 7
