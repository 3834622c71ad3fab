"""Fetch sessions (Kafka's KIP-227): what a consumer reads, remembered from fetch to fetch.

With a session, a fetch names only what has changed, and is told only of partitions with news.

    session id 0, epoch 0       a new session, with all partitions of the request
    session id 0, epoch -1      no session
    session id n, epoch -1      the session ends
    session id n, epoch e > 0   the next fetch of a session; e counts up

Invariant: a session's epoch is the one that the next fetch has to name.
"""

from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from onelog.wire.kafka.codes import ErrorCode
from onelog.wire.kafka.schema import Fields

SESSIONS_MAX = 1_000
PARTITIONS_MAX, _MANY = 1_000_000, 1_000
"""Of all sessions together, looked at if one has many."""
NO_SESSION = 0
_FINAL_EPOCH = -1
_EPOCH_MAX = (1 << 31) - 1

PartitionKey = tuple[str | bytes, int]
"""A topic, by name or id as the request has it, and a partition."""


class FetchPartition(NamedTuple):
    """What a fetch wants of one partition."""

    offset: int
    bytes_max: int
    leader_epoch: int


class FetchSession:
    """What one consumer reads."""

    __slots__ = ("epoch", "number", "partitions", "reported")

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 1
        self.partitions: dict[PartitionKey, FetchPartition] = {}
        """In the order in which they are looked at: who got something goes to the end."""
        self.reported: dict[PartitionKey, tuple[int, int, int]] = {}
        """High watermark, stable end and start that were told last."""

    def update(
        self,
        wanted: Sequence[tuple[PartitionKey, FetchPartition]],
        forgotten: Sequence[PartitionKey],
    ) -> None:
        """Take over what a fetch changes."""
        self.partitions.update(wanted)
        for partition_key in forgotten:
            self.partitions.pop(partition_key, None)
            self.reported.pop(partition_key, None)

    def is_news(self, partition_key: PartitionKey, partition: Fields) -> bool:
        """Whether the consumer has to be told of a partition; to be asked once per answer."""
        marks = (
            partition["high_watermark"],
            partition["last_stable_offset"],
            partition["log_start_offset"],
        )
        if partition["error_code"]:
            self.reported.pop(partition_key, None)
            return True
        if partition["records"]:
            # Those behind it are looked at first the next time.
            self.partitions[partition_key] = self.partitions.pop(partition_key)
        elif self.reported.get(partition_key) == marks:
            return False
        self.reported[partition_key] = marks
        return True


class FetchSessions:
    """All sessions; the one that was used least recently has to go for a new one."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, number: int, epoch: int) -> FetchSession | ErrorCode | None:
        """The session of a fetch; None if it has none; what is wrong with it."""
        if epoch == _FINAL_EPOCH:
            self._sessions.pop(number, None)
            return None
        if epoch == 0:
            self._sessions.pop(number, None)
            return self._new()
        session = self._sessions.get(number)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self._sessions.move_to_end(number)
        return session

    def bound(self, session: FetchSession) -> None:
        """Forget what was used least recently, if all together have too many partitions."""
        if len(session.partitions) < _MANY:
            return
        left = PARTITIONS_MAX - len(session.partitions)
        for number, each in reversed([*self._sessions.items()]):
            if each is not session:
                left -= len(each.partitions)
                if left < 0:
                    del self._sessions[number]

    def _new(self) -> FetchSession:
        number = self._random.randrange(1, _EPOCH_MAX)
        while number in self._sessions:
            number = self._random.randrange(1, _EPOCH_MAX)
        if len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        session = self._sessions[number] = FetchSession(number)
        return session
