"""SEND: a message goes to its destination, now, later, again and again, or with a transaction.

A message for several destinations is stored once: those of one exchange are further routing keys of
it, which nobody sees (`BCC`).
"""

from typing import NamedTuple

from onelog.errors import InvalidRequestError, OnelogError, QueueNotFoundError
from onelog.gateways.stomp.destinations import TEMPORARY, Destination, destinations
from onelog.gateways.stomp.headers import SCHEDULE, arguments_of, is_true, number, properties_of
from onelog.gateways.stomp.session import StompSession, required
from onelog.gateways.stomp.subscriptions import temporary_queue, temporary_topic
from onelog.record.forms import amqp_fields
from onelog.wire.stomp.frame import Frame


class Posting(NamedTuple):
    """A message on its way to an exchange."""

    exchange: str
    key: str
    properties: bytes
    body: bytes


def send(session: StompSession, frame: Frame) -> None:
    headers = frame.headers
    targets = destinations(required(frame, "destination"))
    if headers.get("reply-to", "").startswith(TEMPORARY):
        queue = temporary_queue(session, headers["reply-to"], subscribe=True)
        headers["reply-to"] = f"/reply-queue/{queue.name}"
    properties = properties_of(headers, session.gateway.clock.now_ms())
    routes = _routes(session, frame, targets)
    receipt = headers.get("receipt")
    if not headers.keys().isdisjoint(SCHEDULE):
        each_alone = [
            Posting(exchange, key, properties, frame.body)
            for exchange, keys in routes.items()
            for key in keys
        ]
        _send_later(session, frame, each_alone)
        return
    postings = [
        Posting(exchange, keys[0], _for_all(properties, keys[1:]), frame.body)
        for exchange, keys in routes.items()
    ]
    if "transaction" in headers:
        transaction = session.transactions.get(headers["transaction"])
        if transaction is None:
            raise InvalidRequestError(f"no transaction {headers['transaction'][:100]!r}: BEGIN it")
        for posting in postings:
            transaction.stage(posting)
        session.receipt(receipt)
    else:
        for posting in postings[1:]:
            publish(session, posting, None)
        publish(session, postings[0], receipt)


def publish(session: StompSession, posting: Posting, receipt: str | None) -> None:
    session.pending += 1
    try:
        queues = session.broker.publish.routing.publish(
            session.principal, session.vhost, *posting, session.stored, receipt
        )
    except OnelogError:
        session.pending -= 1
        raise
    if not queues:
        session.settled(receipt, None)  # Nobody wants it.


def _for_all(properties: bytes, keys: list[str]) -> bytes:
    return amqp_fields.with_headers(properties, {"BCC": list(keys)}) if keys else properties


def _routes(
    session: StompSession, frame: Frame, targets: tuple[Destination, ...]
) -> dict[str, list[str]]:
    """The routing keys by exchange; queues are there then."""
    found: dict[str, list[str]] = {}
    for target in targets:
        kind, name, key = target
        if kind in ("topic", "exchange"):
            found.setdefault(name, []).append(key)
            continue
        if kind == "temp-topic":
            found.setdefault("amq.topic", []).append(temporary_topic(session, name))
            continue
        if target.is_pattern:
            raise InvalidRequestError(
                f"/queue/{name} is many queues: send to one, or to several with commas"
            )
        if kind == "temp-queue":
            name = temporary_queue(session, f"{TEMPORARY}{name}").name
        elif kind == "queue":
            ensure_queue(session, frame, name)
        elif kind == "amq/queue":
            session.broker.queues.declared.find(
                session.principal, session.vhost, name, owner=session
            )
        found.setdefault("", []).append(name)
    return found


def ensure_queue(session: StompSession, frame: Frame, name: str) -> None:
    """The queue of a `/queue/` is there."""
    declared = session.gateway.declared
    headers = frame.headers
    arguments = arguments_of(headers) if any(each[:2] == "x-" for each in headers) else {}
    if not arguments and (session.vhost, name) in declared:
        return
    workqueues = session.broker.queues.declared
    if not arguments:
        try:
            found = workqueues.find(session.principal, session.vhost, name, owner=session)
        except QueueNotFoundError:
            pass
        else:
            if not found.exclusive:
                declared.add((session.vhost, name))
            return
    exclusive = is_true(headers.get("exclusive"))
    workqueues.declare(
        session.principal,
        session.vhost,
        name,
        durable=not exclusive and headers.get("durable", "true").lower() != "false",
        exclusive=exclusive,
        auto_delete=is_true(headers.get("auto-delete")),
        arguments=arguments,
        owner=session,
    )
    if not exclusive:
        declared.add((session.vhost, name))


def _send_later(session: StompSession, frame: Frame, postings: list[Posting]) -> None:
    headers = frame.headers
    delay_ms, period_ms = (
        number(headers, name, 1 << 41) if name in headers else 0 for name in SCHEDULE[:2]
    )
    repeat = number(headers, SCHEDULE[2], 1 << 31, -1) if SCHEDULE[2] in headers else 0
    cron = headers.get(SCHEDULE[3], "").strip()
    if "transaction" in headers:
        raise InvalidRequestError("a scheduled message cannot be in a transaction: send it alone")
    receipt = headers.get("receipt")
    for posting in postings:
        session.pending += 1
        last = receipt if posting is postings[-1] else None
        try:
            session.broker.publish.schedules.add(
                session.principal,
                session.vhost,
                *posting,
                delay_ms=delay_ms,
                period_ms=period_ms,
                repeat=repeat,
                cron=cron,
                on_stored=session.stored,
                token=last,
            )
        except OnelogError:
            session.pending -= 1
            raise
