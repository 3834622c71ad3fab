"""Against a Redis of a few lines; tests/e2e/test_handled_keys.py asks a real one the same."""

import builtins
import threading
from collections.abc import Callable

import pytest

from onelog.client.extras.idempotent import RedisStore
from onelog.clock import ManualClock
from tests.client.handled_keys_contract import PROMISES, Subject


class TinyRedis:
    """SET, GET and the one script, as Redis documents them."""

    def __init__(self, clock: ManualClock, decoded: bool) -> None:
        self._clock = clock
        self._decoded = decoded
        self._values: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()

    def _get(self, key: str) -> str | None:
        value, until_ms = self._values.get(key, ("", -1))
        return value if until_ms > self._clock.now_ms() else None

    def execute_command(self, *args: str | int) -> object:
        name, *rest = map(str, args)
        with self._lock:
            if name == "SET":
                key, value, *options = rest
                if "NX" in options and self._get(key) is not None:
                    return None
                until_ms = self._clock.now_ms() + int(options[options.index("PX") + 1])
                self._values[key] = (value, until_ms)
                return True
            if name == "GET":
                found = self._get(rest[0])
                return found if self._decoded or found is None else found.encode()
            assert name == "EVAL"
            _, count, key, owner = rest
            assert count == "1"
            if self._get(key) == owner:
                del self._values[key]
            return 1


@pytest.fixture(params=["bytes", "decoded"])
def subject(request: pytest.FixtureRequest) -> Subject:
    clock = ManualClock()
    redis = TinyRedis(clock, decoded=request.param == "decoded")
    return Subject(RedisStore(redis, group="one"), RedisStore(redis, group="other"), clock.advance)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_redis_keeps_the_promises(promise: Callable[[Subject], None], subject: Subject) -> None:
    promise(subject)


def test_a_url_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without_redis(name: str, *rest: object, **more: object) -> object:
        if name == "redis":
            raise ImportError(name)
        return whole(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_redis)
    with pytest.raises(ImportError, match=r"pip install 'onelog\[redis\]'"):
        RedisStore("redis://127.0.0.1:1/0", group="g")


def test_a_url_is_enough() -> None:
    RedisStore("redis://127.0.0.1:1/0", group="g")
