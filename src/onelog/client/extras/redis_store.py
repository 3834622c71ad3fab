"""Which messages were handled already, in Redis: a store for `idempotent` that machines can share.

A key holds the token of who handles it, or `done`; Redis itself lets it expire, by its own clock.

Invariant: of all that claim a free key at the same time exactly one gets it (`SET ... NX`).
"""

from typing import Protocol

from onelog.client.extras.handled_keys import DONE, Claim

_DONE = DONE.encode()
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
"""Deletes a key only if it still is the caller's."""


class RedisClient(Protocol):
    """What is asked of a client; `redis.Redis` is one."""

    def execute_command(self, *args: str | int) -> object:
        """Send a command and return its answer; texts as bytes or str."""
        ...


class RedisStore:
    """Handled keys in Redis. `client` is a `redis.Redis`, or a URL such as redis://host:6379/0.

    `group` keeps the keys of one consumer group apart from those of others: give the group's name.
    """

    def __init__(
        self, client: RedisClient | str, *, group: str, prefix: str = "onelog:handled:"
    ) -> None:
        self._client = _connected(client) if isinstance(client, str) else client
        self._prefix = f"{prefix}{group}/"

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """Take a key for the time of the lease, unless it is taken or was handled."""
        name = self._prefix + key
        if self._client.execute_command("SET", name, owner, "NX", "PX", lease_ms) is not None:
            return Claim.YOURS
        found = self._client.execute_command("GET", name)
        # None: it expired in between. Then it is free, and the next delivery gets it.
        return Claim.DONE if found in (_DONE, DONE) else Claim.BUSY

    def finish(self, key: str, owner: str, keep_ms: int) -> None:
        """Remember that a key was handled, for this long."""
        self._client.execute_command("SET", self._prefix + key, DONE, "PX", keep_ms)

    def release(self, key: str, owner: str) -> None:
        """Give back a key that was not handled after all."""
        self._client.execute_command("EVAL", _RELEASE, 1, self._prefix + key, owner)


def _connected(url: str) -> RedisClient:
    try:
        import redis
    except ImportError:
        raise ImportError(
            "RedisStore needs the package redis: pip install 'onelog[redis]'"
        ) from None
    client: RedisClient = redis.Redis.from_url(url)
    return client
