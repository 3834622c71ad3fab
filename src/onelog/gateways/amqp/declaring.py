"""Methods about exchanges and queues: declare, bind, purge, delete."""

from contextlib import suppress
from typing import TYPE_CHECKING

from onelog.core.routing.exchanges import DestinationKind
from onelog.errors import ExchangeNotFoundError, QueueNotFoundError, ResourceLockedError
from onelog.gateways.amqp.refusals import not_found, refused
from onelog.gateways.amqp.replies import REPLY_TO, REPLY_TO_PREFIX
from onelog.record.forms.amqp_fields import Table

if TYPE_CHECKING:
    from onelog.gateways.amqp.channel import Channel

_RESERVED = "amq."


def _clean(name: str) -> str:
    """Line ends are not part of names."""
    return name.replace("\r", "").replace("\n", "")


def _no_default(exchange: str) -> None:
    if not exchange:
        raise refused("operation not permitted on the default exchange")


def _not_reserved(kind: str, name: str) -> None:
    if name.startswith(_RESERVED):
        raise refused(f"{kind} name '{name}' contains reserved prefix '{_RESERVED}*'")


# -- exchanges ---------------------------------------------------------------------------------


def exchange_declare(
    channel: "Channel",
    name: str,
    kind: str,
    passive: bool,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    nowait: bool,
    arguments: Table,
) -> None:
    routing, principal, vhost = channel.broker.publish.routing, channel.principal, channel.vhost
    name = _clean(name)
    _no_default(name)
    if passive:
        routing.exchange(principal, vhost, name)
    else:
        if name.startswith(_RESERVED):
            try:
                routing.exchange(principal, vhost, name)
            except ExchangeNotFoundError:
                _not_reserved("exchange", name)
        routing.declare_exchange(
            principal,
            vhost,
            name,
            kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
    channel.answer(nowait, "exchange.declare-ok")


def exchange_delete(channel: "Channel", name: str, if_unused: bool, nowait: bool) -> None:
    name = _clean(name)
    _no_default(name)
    if name.startswith(_RESERVED):
        raise refused(
            f"deletion of system exchange '{name}' in vhost '{channel.vhost}' not allowed"
        )
    channel.broker.publish.routing.delete_exchange(
        channel.principal, channel.vhost, name, if_unused=if_unused
    )
    channel.answer(nowait, "exchange.delete-ok")


def exchange_bind(
    channel: "Channel", destination: str, source: str, key: str, nowait: bool, arguments: Table
) -> None:
    _no_default(source)
    _no_default(destination)
    channel.broker.publish.routing.bind(
        channel.principal, channel.vhost, source, "exchange", destination, key, arguments
    )
    channel.answer(nowait, "exchange.bind-ok")


def exchange_unbind(
    channel: "Channel", destination: str, source: str, key: str, nowait: bool, arguments: Table
) -> None:
    _no_default(source)
    _no_default(destination)
    # What leads nowhere, or from nowhere, is not bound: RabbitMQ says that it is well.
    with suppress(ExchangeNotFoundError):
        channel.broker.publish.routing.unbind(
            channel.principal, channel.vhost, source, "exchange", destination, key, arguments
        )
    channel.answer(nowait, "exchange.unbind-ok")


# -- queues ------------------------------------------------------------------------------------


def queue_declare(
    channel: "Channel",
    name: str,
    passive: bool,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    nowait: bool,
    arguments: Table,
) -> None:
    name = _clean(name)
    queues = channel.broker.queues.declared
    if name == REPLY_TO or name.startswith(REPLY_TO_PREFIX):
        if name != REPLY_TO and name not in channel.gateway.replies:
            raise not_found(f"no queue '{name}' in vhost '{channel.vhost}'")
        channel.answer(nowait, "queue.declare-ok", name, 0, 1)
        return
    if passive:
        name = channel.consuming.named(name)
        stream = channel.consuming.stream(name)
        if stream is not None:
            channel.queue = name
            channel.answer(nowait, "queue.declare-ok", name, stream.count(channel), 0)
            return
        queue = queues.find(channel.principal, channel.vhost, name, channel.session)
    else:
        _not_reserved("queue", name)
        queue = queues.declare(
            channel.principal,
            channel.vhost,
            name,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments,
            owner=channel.session,
        )
    channel.queue = queue.name
    channel.answer(nowait, "queue.declare-ok", queue.name, queue.ready, len(queue.consumers))


def queue_bind(
    channel: "Channel", name: str, exchange: str, key: str, nowait: bool, arguments: Table
) -> None:
    _bind(channel, name, exchange, key, arguments, True)
    channel.answer(nowait, "queue.bind-ok")


def queue_unbind(channel: "Channel", name: str, exchange: str, key: str, arguments: Table) -> None:
    with suppress(QueueNotFoundError, ExchangeNotFoundError):
        _bind(channel, name, exchange, key, arguments, False)
    channel.reply("queue.unbind-ok")


def _bind(
    channel: "Channel", name: str, exchange: str, key: str, arguments: Table, is_bound: bool
) -> None:
    key = key if key or name else channel.queue
    name = channel.consuming.named(_clean(name))
    exchange = _clean(exchange)
    _no_default(exchange)
    routing = channel.broker.publish.routing
    try:
        # Of an exclusive queue of another connection nothing may be changed.
        stream = channel.consuming.stream(name)
    except ResourceLockedError:
        routing.exchange(
            channel.principal, channel.vhost, exchange
        )  # That it is not there comes first.
        raise
    change = routing.bind if is_bound else routing.unbind
    is_topic = stream is not None and not stream.is_declared
    kind: DestinationKind = "topic" if is_topic else "queue"
    change(channel.principal, channel.vhost, exchange, kind, name, key, arguments)


def queue_purge(channel: "Channel", name: str, nowait: bool) -> None:
    name = channel.consuming.named(_clean(name))
    count = channel.broker.queues.declared.purge(
        channel.principal, channel.vhost, name, channel.session
    )
    channel.answer(nowait, "queue.purge-ok", count)


def queue_delete(
    channel: "Channel", name: str, if_unused: bool, if_empty: bool, nowait: bool
) -> None:
    name = channel.consuming.named(_clean(name))
    count = channel.broker.queues.declared.delete(
        channel.principal,
        channel.vhost,
        name,
        if_unused=if_unused,
        if_empty=if_empty,
        owner=channel.session,
    )
    channel.answer(nowait, "queue.delete-ok", count)
