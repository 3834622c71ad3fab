"""What an operation is: a row, from which its command, its REST route and its OpenAPI text come.

A row names what the operation takes and gives, as `msgspec` types; what does not fit them is
refused before anything is done. What it does in the broker is the function of the same name in
`onelog.admin.broker`. Commands that work on clusters of RocketMQ, too, have another execution, over
the network, in `onelog.commands`; all others have the broker's.

This module and the rows import neither the core nor the client: a command line reads them.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct, field

T = TypeVar("T")
NO_DIFFERENCE: Mapping[str, Any] = MappingProxyType({})


def about(
    text: str, *flags: str, command: Mapping[str, Any] = NO_DIFFERENCE, **limits: Any
) -> Meta:
    """What people are told of an argument, with its names on the command line if not its own.

    `command` has what is different there: `default`, `min`, `max`; and `is_time`, if people write a
    time as they like.
    """
    return Meta(description=text, extra={"flags": flags, **command}, **limits)


Name = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=255)]
Limit = Annotated[int, about("How many at most.", ge=1, le=1_000)]
Part = Annotated[str, about("Only names that have this in them.", max_length=255)]
After = Annotated[str, about("The `next` of the last page.", max_length=255)]
Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_000)]
Time = Annotated[Moment, about("Milliseconds since 1970, UTC.")]
Position = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Topic = Annotated[str, about("The topic's name.", min_length=1, max_length=255)]
Group = Annotated[str, about("The group's name.", min_length=1, max_length=255)]
Id = Annotated[str, about("The id.", min_length=1, max_length=255)]
ItsName = Annotated[str, about("Its name.", min_length=1, max_length=255)]


class Arguments(Struct, forbid_unknown_fields=True, kw_only=True):
    """No parameters."""


class OfTopic(Arguments):
    """Which topic."""

    topic: Topic


class OfGroup(Arguments):
    """Which group."""

    group: Group


class Named(Arguments):
    """Which of them."""

    name: ItsName


class Identified(Arguments):
    """Which of them."""

    id: Id


class Paged(Arguments):
    """Which of them, by name."""

    q: Part = ""
    limit: Limit = 100
    after: After = ""


class Done(Struct):
    """It is done."""

    done: bool = True


class Listing(Struct, Generic[T]):
    """A page of something: `next` is the `after` of the following page, if there is one."""

    items: list[T]
    total: int
    next: str | None = None


class ClusterListing(Listing[T], Generic[T]):
    """The same, of all brokers of the cluster but those that did not answer."""

    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Operation:
    """One row."""

    method: str
    path: str
    """What is in braces are arguments."""
    commands: tuple[str, ...]
    asks_all: bool
    """Whether it asks all brokers of the cluster: `onelog.admin.network` has it, too."""
    name: str
    """What clients that are made from the OpenAPI document call it."""
    arguments: type[Arguments]
    result: Any
    status: int
    whole: str
    """The argument that the body of a request is, as a whole; empty if the body has them all."""
    summary: str

    @property
    def path_names(self) -> list[str]:
        """The arguments that are in the path."""
        return [each.partition("}")[0] for each in self.path.split("{")[1:]]

    @property
    def changes(self) -> bool:
        """Whether it may change something, and is for administrators."""
        return self.method != "GET"

    @property
    def takes_body(self) -> bool:
        return self.method in ("POST", "PATCH", "PUT")


_ROW = re.compile(
    r"(?P<method>\w+) (?P<path>\S+) = (?P<commands>.+)\n"
    r" +(?P<cluster>cluster )?(?P<name>\w+)\((?P<arguments>\w*)\)"
    r" -> ((?P<listing>\w+)\[)?(?P<result>\w+)\]?( (?P<status>\d+))?( whole=(?P<whole>\w+))?"
    r": (?P<summary>.+)\n"
)


def declared(kinds: Mapping[str, Any], rows: str) -> list[Operation]:
    """The operations of a table, two lines each; the types that it names are among `kinds`.

    METHOD /path/{argument} = command, another command
        name(Arguments) -> Result: What it does

    `cluster` before the name says that it asks all brokers, by RocketMQ's own requests.
    """
    known = {**globals(), "str": str, **kinds}
    found = []
    for row in _ROW.finditer(re.sub(r",\n +", ", ", rows)):
        result = known[row["result"]]
        found.append(
            Operation(
                row["method"],
                row["path"],
                tuple(row["commands"].split(", ")),
                bool(row["cluster"]),
                row["name"],
                known[row["arguments"] or "Arguments"],
                known[row["listing"]][result] if row["listing"] else result,
                int(row["status"] or 200),
                row["whole"] or "",
                row["summary"],
            )
        )
    assert len(found) == rows.count(") -> "), "a row is not as it should be"
    return found


def fill(kind: type[T], source: object, /, **more: Any) -> T:
    """A value of a kind: `more`, and the attributes of another value that have the same names."""
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    return kind(**{name: getattr(source, name) for name in names if name not in more}, **more)


def paged(names: Sequence[str], limit: int, after: str) -> tuple[list[str], str | None]:
    """The next names behind one, of a sorted list, and where the following page begins."""
    begin = bisect_right(names, after) if after else 0
    page = list(names[begin : begin + limit])
    has_more = begin + limit < len(names)
    return page, page[-1] if has_more and page else None


def listed(found: Iterable[Any], given: Paged, show: Callable[[Any], T]) -> Listing[T]:
    """A page of what has names, by name."""
    known = {each.name: each for each in found if given.q.lower() in each.name.lower()}
    page, following = paged(sorted(known), given.limit, given.after)
    return Listing([show(known[name]) for name in page], len(known), following)
