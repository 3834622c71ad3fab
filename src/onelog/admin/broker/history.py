"""What became of messages, and what is to: traces, delays, dead letters, open transactions."""

import asyncio

from onelog.admin import network
from onelog.admin.broker.call import Call
from onelog.admin.broker.cluster_admin import admin_of, network_of
from onelog.admin.documents import clean
from onelog.admin.history import (
    Box,
    BoxQuery,
    Cancel,
    Cancelled,
    DeadLetter,
    DelayQuery,
    Drop,
    Dropped,
    HalfMessage,
    HalfQuery,
    LetterQuery,
    Resend,
    Resent,
    Trace,
    TraceQuery,
    Transaction,
    Waiting,
)
from onelog.admin.operations import (
    Arguments,
    ClusterListing,
    Done,
    Identified,
    Listing,
    fill,
)
from onelog.core.schedule.records import REAL_TOPIC
from onelog.core.transactions.half_records import PRODUCER_GROUP
from onelog.errors import InvalidRequestError
from onelog.gateways.http.requests import called, looked_up
from onelog.message import Message, decode_properties
from onelog.names import DEAD_LETTER_PREFIX


async def get_trace(call: Call, given: TraceQuery) -> Trace:
    """The history of a message, by its id or unique key."""
    call.check("describe", "names")
    found = await network.get_trace(network_of(call), given)
    call.check("consume", found.topic, "topic")
    return found


async def list_delays(call: Call, given: DelayQuery) -> ClusterListing[Waiting]:
    """Messages that wait for their time, those that are due first."""
    call.check("describe", "names")
    return await network.list_delays(network_of(call), given)


async def cancel_delay(call: Call, given: Cancel) -> Cancelled:
    """Take a message back, by its handle, id or unique key: it is never delivered."""
    handle = await admin_of(call).delays.find(given.id)
    call.check("publish", handle.topic, "topic")
    return await network.cancel_delay(network_of(call), Cancel(id=handle.encode()))


async def list_boxes(call: Call, given: BoxQuery) -> ClusterListing[Box]:
    """Groups that have dead letters."""
    call.check("describe", "names")
    return await network.list_boxes(network_of(call), given)


async def list_letters(call: Call, given: LetterQuery) -> Listing[DeadLetter]:
    """Dead letters of a group."""
    call.check("consume", DEAD_LETTER_PREFIX + given.group, "topic")
    return await network.list_letters(network_of(call), given)


async def resend_letters(call: Call, given: Resend) -> Resent:
    """Send dead letters again, to where they came from or elsewhere."""
    call.check("consume", DEAD_LETTER_PREFIX + given.group, "topic")
    if given.to_topic:
        call.check("publish", given.to_topic, "topic")
    return await network.resend_letters(network_of(call), given)


async def drop_letters(call: Call, given: Drop) -> Dropped:
    """Be done with the letters of a group that are there now, without sending them again."""
    call.check("delete", DEAD_LETTER_PREFIX + given.group, "topic")
    return await network.drop_letters(network_of(call), given)


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
