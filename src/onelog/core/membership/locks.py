"""Queue locks: which client of a group may consume a queue in order.

A lock lives for a minute and is renewed by asking again. Locks are memory only: after a restart the
client that held a queue asks again within seconds, and gets it, as nobody else asks for its queues.

Invariant: at any moment at most one client of a group holds a queue.
"""

from collections.abc import Iterable

from onelog.clock import Clock

Queue = tuple[str, int]
"""A topic and a queue id."""


class Locks:
    """The locks of all groups."""

    def __init__(self, clock: Clock, expiry_ms: int = 60_000) -> None:
        self._clock = clock
        self._expiry_ms = expiry_ms
        self._holders: dict[str, dict[Queue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[Queue]) -> list[Queue]:
        """Lock, or renew, what can be; the answer is what the client now holds of `queues`."""
        now = self._clock.now_ms()
        held = self._holders.setdefault(group, {})
        granted = []
        for queue in queues:
            holder = held.get(queue)
            if holder is None or holder[0] == client_id or now - holder[1] > self._expiry_ms:
                held[queue] = (client_id, now)
                granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Release the queues that this client holds; others' locks stay."""
        held = self._holders.get(group, {})
        for queue in queues:
            holder = held.get(queue)
            if holder is not None and holder[0] == client_id:
                del held[queue]
        if not held:
            self._holders.pop(group, None)

    def holder(self, group: str, queue: Queue) -> str | None:
        holder = self._holders.get(group, {}).get(queue)
        if holder is None or self._clock.now_ms() - holder[1] > self._expiry_ms:
            return None
        return holder[0]

    def any_held(self, group: str) -> bool:
        """Whether the group consumes in order: some lock of it is alive."""
        deadline = self._clock.now_ms() - self._expiry_ms
        return any(taken_ms >= deadline for _, taken_ms in self._holders.get(group, {}).values())

    def expire(self) -> None:
        """Forget dead locks, so that groups that are gone take no memory."""
        deadline = self._clock.now_ms() - self._expiry_ms
        for group, held in list(self._holders.items()):
            for queue in [queue for queue, (_, taken_ms) in held.items() if taken_ms < deadline]:
                del held[queue]
            if not held:
                del self._holders[group]
