"""OneLog: one log, every queue. A message broker in pure Python."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from onelog.embedded_broker import Embedding

__version__ = "0.1.0"

__all__ = ["__version__", "embedded"]


def embedded(
    folder: "str | os.PathLike[str] | None" = None,
    *,
    port: int | None = None,
    **settings: bool | int | str,
) -> "Embedding":
    """A broker inside this process, for as long as a `with` or `async with` block lasts.

    `folder` keeps its messages; without one they live in memory, and end with it. `port` makes its
    name server listen on that port of 127.0.0.1, too (0 takes a free one), for other processes.
    Settings are those of `onelog config`, as `broker__auto_create_topics=False`.
    """
    # Here and not above: the broker is large, and most who import the package need a part of it.
    from onelog.embedded_broker import Embedding

    return Embedding(folder, port, settings)
