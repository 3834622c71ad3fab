"""The messages of one queue that were fetched and are not finished yet.

They are added in the order of the queue and finish in any order. What may be committed is the
offset of the first unfinished one: a consumer that starts again there misses nothing.

Invariant: `committable` never passes an unfinished message, and never goes back.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from onelog.client.message import ReceivedMessage


class ProcessQueue:
    """The messages in hand of one queue."""

    __slots__ = ("_order", "_sizes", "bytes_in_hand", "next_offset")

    def __init__(self, offset: int) -> None:
        self.next_offset = offset
        """From where to fetch on; everything before it was added, or is not wanted."""
        self.bytes_in_hand = 0
        self._sizes: dict[int, int] = {}
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Take messages that were fetched at `next_offset`, and the one to fetch at now.

        The answer is those of them that are new: a batch in one record comes whole, also if it was
        asked for from its middle on.
        """
        if messages and messages[0].raw.queue_offset < self.next_offset:
            start = self.next_offset
            messages = [each for each in messages if each.raw.queue_offset >= start]
        records = [message.raw for message in messages]
        offsets = [record.queue_offset for record in records]
        sizes = [len(record.body) for record in records]
        self._order.extend(offsets)
        self._sizes.update(zip(offsets, sizes, strict=True))
        self.bytes_in_hand += sum(sizes)
        self.next_offset = max(self.next_offset, next_offset)
        return list(messages)

    def add_next(self, message: ReceivedMessage) -> None:
        """Take the one message that was to be fetched next."""
        record = message.raw
        offset = record.queue_offset
        assert offset == self.next_offset
        self._order.append(offset)
        self._sizes[offset] = size = len(record.body)
        self.bytes_in_hand += size
        self.next_offset = offset + 1

    def finish(self, offsets: Iterable[int]) -> None:
        """Messages are consumed, or need not be any more. One that is not in hand is ignored."""
        sizes = self._sizes
        for offset in offsets:
            self.bytes_in_hand -= sizes.pop(offset, 0)

    def __contains__(self, offset: int) -> bool:
        return offset in self._sizes

    @property
    def committable(self) -> int:
        """Everything before this offset is finished."""
        order, sizes = self._order, self._sizes
        while order:
            if order[0] in sizes:
                return order[0]
            order.popleft()
        return self.next_offset

    @property
    def last_offset(self) -> int:
        """The offset of the last message that was added and may be unfinished; -1 if none is."""
        return self._order[-1] if self._sizes else -1

    @property
    def span(self) -> int:
        """How far it is from the first unfinished message to the last one that was fetched."""
        return self._order[-1] - self.committable if self._sizes else 0
