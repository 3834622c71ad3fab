"""How threads use an asyncio client: it runs on the background loop, and they wait for it.

A synchronous class names the methods of its asyncio class and says how each is called:

    class Admin...:
        names = waiting(Topics.names)            # `async def` there, returns when it is done here
        by_time = iterating(Messages.by_time)    # `async for` there, `for` here
        pause = calling(AsyncPullConsumer.pause) # plain there, but to be called on its loop

Arguments, results and docstrings are those of the asyncio method, also to type checkers.

Invariant: any thread may call any method, and whoever waits can be interrupted (Ctrl-C).
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from onelog.client.connection import background
from onelog.errors import ClientClosedError

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class _Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class Waiter(ABC, Generic[A]):
    """An object for threads; `_core`, which belongs to the background loop, does its work."""

    def __init__(self, core: A) -> None:
        self._core = core

    @abstractmethod
    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the core, and return what it returns."""

    def _call(self, do: Callable[[], T]) -> T:
        async def done() -> T:
            return do()

        return self._run(done())


class Part(Waiter[A]):
    """A part of a client for threads, such as `topics` of an administrator."""

    def __init__(self, core: A, client: "SyncClient[Any]") -> None:
        super().__init__(core)
        self._client = client

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._client._run(work)


class SyncClient(Waiter[C]):
    """A client for threads."""

    def __init__(self, core: C, name: str) -> None:
        """`name` is what errors call it."""
        super().__init__(core)
        self._name = name
        self._background: background.BackgroundLoop | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin. Nothing is connected before it is needed."""
        if self._is_closed:
            raise ClientClosedError(f"{self._name} was closed: make a new one")
        if self._background is None:
            self._begin()
            self._background = background.current()

    @abstractmethod
    def _begin(self) -> None:
        """Start the core."""

    def close(self) -> None:
        """Wait for what is on its way, then leave. Closing twice does no harm."""
        self._close(self._core.close)

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._background is not None and self._background.is_usable:
                background.run(close())

    def check_usable(self) -> None:
        """An error that says why, if nothing can be done in this process or from this thread."""
        home = self._background
        if home is None or self._is_closed:
            what = "was closed: make a new one"
            if not self._is_closed:
                what = "is not started: use it in `with`, or start()"
            raise ClientClosedError(f"{self._name} {what}")
        home.check_usable()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self.check_usable()
        except BaseException:
            work.close()
            raise
        return background.run(work)


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Waiter[A], P], T]:
    """The same method for threads: it returns when it is done."""

    @functools.wraps(method)
    def call(waiter: Waiter[A], /, *arguments: P.args, **named: P.kwargs) -> T:
        return waiter._run(method(waiter._core, *arguments, **named))

    return call


def calling(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Waiter[A], P], T]:
    """The same method for threads: it is called on the loop."""

    @functools.wraps(method)
    def call(waiter: Waiter[A], /, *arguments: P.args, **named: P.kwargs) -> T:
        return waiter._call(lambda: method(waiter._core, *arguments, **named))

    return call


def iterating(
    method: Callable[Concatenate[A, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Waiter[A], P], Iterator[T]]:
    """The same generator for threads: it waits for each item."""

    @functools.wraps(method)
    def iterate(waiter: Waiter[A], /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        items = method(waiter._core, *arguments, **named)

        async def following() -> tuple[T] | None:
            # StopAsyncIteration cannot pass through a future.
            async for item in items:
                return (item,)
            return None

        try:
            while (found := waiter._run(following())) is not None:
                yield found[0]
        finally:
            waiter._run(items.aclose())

    return iterate
