"""What became of messages, and what is to: traces, delays, dead letters, open transactions."""

import asyncio
from typing import Any

from onelog.admin.broker.call import Call
from onelog.admin.broker.cluster_admin import admin_of
from onelog.admin.broker.documents import clean, document
from onelog.admin.history import (
    Box,
    DeadLetter,
    DelayQuery,
    GroupOutcome,
    HalfMessage,
    HalfQuery,
    LetterQuery,
    Resend,
    Resent,
    Step,
    Trace,
    TraceQuery,
    Transaction,
    Waiting,
)
from onelog.admin.operations import Arguments, Done, Identified, Listing, OfGroup, fill
from onelog.core.schedule.records import REAL_TOPIC
from onelog.core.transactions.half_records import PRODUCER_GROUP
from onelog.errors import InvalidRequestError
from onelog.gateways.http.requests import called, looked_up
from onelog.message import Message, decode_properties
from onelog.names import DEAD_LETTER_PREFIX

LETTERS_MAX = 10_000


async def get_trace(call: Call, given: TraceQuery) -> Trace:
    """The history of a message, by its id or unique key."""
    call.check("describe", "names")
    found = await admin_of(call).traces.trace(given.id, topic=given.topic or None)
    call.check("consume", found.topic, "topic")
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
    return fill(
        Trace,
        found,
        id=found.first.message_id if found.first else None,
        steps=steps,
        groups=[fill(GroupOutcome, each, at_ms=each.at_ms or None) for each in found.fates],
        failures=[str(each) for each in found.failures],
    )


async def list_delays(call: Call, given: DelayQuery) -> Listing[Waiting]:
    """Messages that wait for their time, those that are due first."""
    call.check("describe", "names")
    listing = await admin_of(call).delays.waiting(given.topic or None, count_max=given.limit)
    items = [
        fill(Waiting, each, queue=each.queue_id, id=each.message_id, keys=list(each.keys))
        for each in listing.messages
    ]
    return Listing(items, listing.count)


async def cancel_delay(call: Call, given: Identified) -> Done:
    """Take a message back, by its handle, id or unique key: it is never delivered."""
    delays = admin_of(call).delays
    handle = await delays.find(given.id)
    call.check("publish", handle.topic, "topic")
    await delays.cancel(handle)
    return Done()


async def list_boxes(call: Call, given: Arguments) -> Listing[Box]:
    """Groups that have dead letters."""
    call.check("describe", "names")
    boxes = await admin_of(call).dead_letters.boxes(with_empty=True)
    items = [fill(Box, each, updated_ms=each.updated_ms or None) for each in boxes]
    return Listing(items, len(items))


async def list_letters(call: Call, given: LetterQuery) -> Listing[DeadLetter]:
    """Dead letters of a group."""
    group = given.group
    call.check("consume", DEAD_LETTER_PREFIX + group, "topic")
    dead = admin_of(call).dead_letters
    box = await dead.box(group)
    items = []
    letters = dead.letters(group, everything=given.everything)
    try:
        async for letter in letters:
            items.append(fill(DeadLetter, letter, message=document(letter.found.message)))
            if len(items) >= given.limit:
                break
    finally:
        await letters.aclose()
    return Listing(items, box.kept if given.everything else box.count)


async def resend_letters(call: Call, given: Resend) -> Resent:
    """Send dead letters again, to where they came from or elsewhere."""
    group = given.group
    call.check("consume", DEAD_LETTER_PREFIX + group, "topic")
    if given.to_topic:
        call.check("publish", given.to_topic, "topic")
    dead = admin_of(call).dead_letters
    how: Any = {"to_topic": given.to_topic or None, "again": given.again, "dry_run": given.dry_run}
    if given.ids:
        done = await dead.resend([await dead.find(group, each) for each in given.ids], **how)
        if not given.dry_run:
            await dead.settle(group)
    else:
        done = await dead.resend_all(group, **how)
    failures = [f"{each.who}: {each.reason}" for each in done.failures]
    ids = [each.new_id or each.message_id for each in done.resent[:LETTERS_MAX]]
    return Resent(len(done.resent), done.already, failures, ids)


async def drop_letters(call: Call, given: OfGroup) -> Done:
    """Be done with the letters of a group that are there now, without sending them again."""
    group = given.group
    call.check("delete", DEAD_LETTER_PREFIX + group, "topic")
    dead = admin_of(call).dead_letters
    await dead.drop(await dead.box(group))
    return Done()


async def list_transactions(call: Call, given: Arguments) -> Listing[Transaction]:
    """Transactions of Kafka's kind; those that hang are overdue."""
    now_ms = call.context.clock.now_ms()
    items = []
    for number, each in enumerate(
        call.broker.transactions.in_place.transactions(call.principal), 1
    ):
        is_open = each.state.value == "Ongoing"
        items.append(
            fill(
                Transaction,
                each,
                id=each.name,
                state=each.state.value,
                begun_ms=each.begun_ms or None,
                queues=sorted(f"{topic}/{queue}" for topic, queue in each.queues),
                is_overdue=is_open and now_ms - each.begun_ms > each.timeout_ms,
            )
        )
        if number % 200 == 0:
            await asyncio.sleep(0)
    return Listing(items, len(items))


async def abort_transaction(call: Call, given: Identified) -> Done:
    """Put an end to a transaction that hangs; its producer is told so when it comes back."""
    name = given.id
    broker = call.broker
    found = {
        each.name: each for each in broker.transactions.in_place.transactions(call.principal)
    }.get(name)
    if found is None or found.state.value != "Ongoing":
        raise InvalidRequestError(f"there is no open transaction {name!r:.80}")
    _, error = await called(
        lambda done: broker.transactions.in_place.end(
            call.principal, name, found.producer_id, found.epoch, False, done
        )
    )
    if error is not None:
        raise error
    return Done()


async def list_halves(call: Call, given: HalfQuery) -> Listing[HalfMessage]:
    """Half messages that are open, the oldest first."""
    offsets = call.broker.transactions.half_offsets(call.principal)
    first = offsets[: given.limit]
    found = await looked_up(
        call.context, lambda: call.broker.transactions.open_halves(call.principal, first)
    )
    return Listing([_half(message, checks) for message, checks in found], len(offsets))


def _half(message: Message, checks: int) -> HalfMessage:
    properties = decode_properties(message.properties)
    return HalfMessage(
        id=message.message_id,
        unique_key=clean(message.unique_key),
        topic=clean(properties.get(REAL_TOPIC, "")),
        group=clean(properties.get(PRODUCER_GROUP, "")),
        born_ms=message.born_ms,
        checks=checks,
        body_bytes=len(message.body),
    )


async def resume_half(call: Call, given: Identified) -> Done:
    """Ask again about a half message that was put away because nobody answered."""
    broker = call.broker
    await looked_up(
        call.context, lambda: broker.transactions.find_given_up(call.principal, given.id)
    )
    _, _, error = await called(
        lambda done: broker.transactions.resume_check(call.principal, given.id, done)
    )
    if error is not None:
        raise error
    return Done()
