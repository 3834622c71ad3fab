"""Share sessions: which partitions a member of a share group takes messages from.

    epoch 0        a new session; one that is there is forgotten
    epoch -1       the session ends, and what the member has may be had by others
    epoch e > 0    the next request of a session; e counts up

A session hangs on the connection on which it began: a member that is cut off has what it was given
no longer.

Invariant: a session's epoch is the one that the next request has to name.
"""

from collections.abc import Callable, Hashable

from onelog.wire.kafka.codes import ErrorCode

SESSIONS_MAX, PARTITIONS_MAX = 2_000, 100_000
"""Sessions of all, and partitions of each."""
NEW, FINAL = 0, -1
_EPOCH_MAX = (1 << 31) - 1

PartitionKey = tuple[bytes, int]
"""A topic, by its id, and a partition."""
Owner = tuple[str, str]
"""A group, and a member of it."""


class ShareSession:
    """What one member takes messages from, and the connection that it uses."""

    __slots__ = ("channel", "epoch", "partitions")

    def __init__(self, channel: Hashable) -> None:
        self.channel = channel
        self.epoch = 1
        self.partitions: dict[PartitionKey, None] = {}

    def in_turn(self) -> list[PartitionKey]:
        """Its partitions, from another one on each time."""
        partition_keys = list(self.partitions)
        first = self.epoch % len(partition_keys) if partition_keys else 0
        return partition_keys[first:] + partition_keys[:first]


class ShareSessions:
    """All sessions."""

    def __init__(self, on_gone: Callable[[str, str], None]) -> None:
        """`on_gone` is called with a group and a member that was cut off."""
        self._on_gone = on_gone
        self._sessions: dict[Owner, ShareSession] = {}
        self._channels: dict[Hashable, set[Owner]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, owner: Owner, epoch: int, channel: Hashable) -> ShareSession | ErrorCode:
        """The session of a request, or what is wrong with it; one that ends is here no more."""
        if epoch == NEW:
            self._drop(owner)
            if len(self._sessions) >= SESSIONS_MAX:
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED
            session = self._sessions[owner] = ShareSession(channel)
            self._channels.setdefault(channel, set()).add(owner)
            return session
        found = self._sessions.get(owner)
        if found is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL:
            self._drop(owner)
        elif found.epoch != epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        else:
            found.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return found

    def _drop(self, owner: Owner) -> None:
        session = self._sessions.pop(owner, None)
        if session is not None:
            owners = self._channels[session.channel]
            owners.discard(owner)
            if not owners:
                del self._channels[session.channel]

    def channel_closed(self, channel: Hashable) -> None:
        """A connection is gone: nobody has what was given on it."""
        for group, member in self._channels.pop(channel, ()):
            del self._sessions[group, member]
            self._on_gone(group, member)
