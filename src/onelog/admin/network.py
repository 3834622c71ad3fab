"""What operations do over the network: those that ask all brokers of a cluster.

They need no more than requests of RocketMQ's protocol, so they work with its brokers, too. A
command calls them itself; a broker that is asked for one calls them in the name of who asks.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from onelog.admin.documents import SHORT_BYTES, document
from onelog.admin.history import (
    Box,
    BoxQuery,
    BoxQueue,
    Cancel,
    Cancelled,
    DeadLetter,
    DelayQuery,
    Drop,
    Dropped,
    GroupOutcome,
    LetterQuery,
    Resend,
    Resent,
    ResentLetter,
    Step,
    Trace,
    TraceQuery,
    Waiting,
)
from onelog.admin.operations import ClusterListing, Listing, fill
from onelog.admin.table import OPERATIONS
from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.dead_letters import Resending
from onelog.client.admin.traces import MessageTrace, StepKind
from onelog.client.connection.nodes import at_once
from onelog.errors import InvalidRequestError, MessageNotFoundError

LETTERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Network:
    """A cluster, as a command or a broker reaches it."""

    admin: AsyncAdmin
    body_bytes_max: int = SHORT_BYTES
    """How much of each body is shown."""
    on_progress: Callable[[int, int], None] = lambda done, total: None


async def get_trace(at: Network, given: TraceQuery) -> Trace:
    found = await at.admin.traces.trace(
        given.id, topic=given.topic or None, trace_topic=given.trace_topic
    )
    first = found.first
    steps = [
        fill(
            Step,
            each,
            step=each.kind.value,
            since_born_ms=each.at_ms - found.born_ms,
            group=each.group or None,
            place=each.place or None,
            retry=each.retry if each.retry >= 0 else None,
            note=each.note or None,
            id=each.message_id or None,
        )
        for each in found.steps
    ]
    outcomes = [
        fill(
            GroupOutcome,
            each,
            at_ms=each.at_ms or None,
            since_born_ms=each.at_ms - found.born_ms if each.at_ms else None,
        )
        for each in found.fates
    ]
    return fill(
        Trace,
        found,
        id=first.message_id if first else None,
        keys=list(first.keys) if first else [],
        tags=first.tags if first else None,
        remarks=_remarks(found),
        steps=steps,
        groups=outcomes,
        failures=list(map(str, found.failures)),
    )


def _remarks(found: MessageTrace) -> list[str]:
    remarks = []
    if found.first is None:
        waits = any(step.kind in (StepKind.DELAYED, StepKind.PREPARED) for step in found.steps)
        what = "consumers cannot see it yet" if waits else "the log does not have it any more"
        remarks.append(f"it is not in its topic: {what}")
    if not found.traced:
        remarks.append("no client traced it: when it was sent and delivered is not known")
    return remarks


async def list_delays(at: Network, given: DelayQuery) -> ClusterListing[Waiting]:
    listing = await at.admin.delays.waiting(
        given.topic or None,
        cluster=given.cluster or None,
        count_max=given.limit,
        on_progress=at.on_progress,
    )
    items = [
        fill(Waiting, each, queue=each.queue_id, id=each.message_id, keys=list(each.keys))
        for each in listing.messages
    ]
    return ClusterListing(items, listing.count, failures=list(map(str, listing.failures)))


async def cancel_delay(at: Network, given: Cancel) -> Cancelled:
    handle = await at.admin.delays.find(given.id)
    await at.admin.delays.cancel(handle)
    return fill(Cancelled, handle, done=True, due_ms=handle.time_ms - 1, handle=handle.encode())


async def list_boxes(at: Network, given: BoxQuery) -> ClusterListing[Box]:
    boxes = await at.admin.dead_letters.boxes(with_empty=given.everything)
    items = [
        fill(
            Box,
            each,
            updated_ms=each.updated_ms or None,
            brokers=sorted({queue.broker for queue in each.queues}),
            queues=[
                fill(BoxQueue, queue, queue=queue.queue_id, mark=queue.begin)
                for queue in each.queues
            ],
        )
        for each in boxes
    ]
    failures = dict.fromkeys(str(failure) for each in boxes for failure in each.failures)
    return ClusterListing(items, len(items), failures=list(failures))


async def list_letters(at: Network, given: LetterQuery) -> Listing[DeadLetter]:
    dead = at.admin.dead_letters
    box = await dead.box(given.group)
    items: list[DeadLetter] = []
    everything = given.everything or given.begin is not None
    letters = dead.letters(
        given.group, begin=given.begin, since_ms=given.since_ms or 0, everything=everything
    )
    try:
        async for letter in letters:
            shown = document(letter.found.message, at.body_bytes_max, letter.found.broker)
            items.append(fill(DeadLetter, letter, message=shown))
            if len(items) >= given.limit:
                break
    finally:
        await letters.aclose()
    return Listing(items, box.kept if everything else box.count)


async def resend_letters(at: Network, given: Resend) -> Resent:
    done = await _resend(at, given)
    return Resent(
        group=given.group,
        dry_run=given.dry_run,
        resent=len(done.resent),
        already=done.already,
        failures=list(map(str, done.failures)),
        ids=[each.new_id or each.message_id for each in done.resent[:LETTERS_MAX]],
        letters=[
            ResentLetter(each.message_id, each.topic, each.new_id or None)
            for each in done.resent[:LETTERS_MAX]
        ],
    )


async def _resend(at: Network, given: Resend) -> Resending:
    dead, group = at.admin.dead_letters, given.group
    how: Any = {"to_topic": given.to_topic or None, "again": given.again, "dry_run": given.dry_run}
    if given.ids:
        chosen = await at_once(lambda each: dead.find(group, each), dict.fromkeys(given.ids))
    elif given.key:
        chosen = [
            letter
            async for letter in dead.letters(group, everything=given.again)
            if given.key in letter.found.message.keys
        ]
        if not chosen:
            raise MessageNotFoundError(f"no dead letter of {group} has the key {given.key!r}")
    else:
        return await dead.resend_all(group, **how, on_progress=at.on_progress)
    done = await dead.resend(chosen, **how)
    if not given.dry_run:
        await dead.settle(group)
    return done


async def drop_letters(at: Network, given: Drop) -> Dropped:
    if given.undo and given.until_ms is not None:
        raise InvalidRequestError("undo takes everything back: leave the time out")
    dead = at.admin.dead_letters
    box = await dead.box(given.group)
    if given.until_ms is not None:
        box = await dead.before(box, given.until_ms)
    if not given.dry_run:
        await (dead.restore if given.undo else dead.drop)(box)
    count = box.kept - box.count if given.undo else box.count
    return fill(Dropped, given, done=not given.dry_run, letters=count)


FUNCTIONS: dict[str, Callable[[Network, Any], Awaitable[Any]]] = {
    each.name: globals()[each.name] for each in OPERATIONS if each.asks_all
}
