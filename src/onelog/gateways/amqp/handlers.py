"""Which function does what a method says, on a channel."""

from onelog.gateways.amqp import declaring
from onelog.gateways.amqp.channel import Channel, Handler
from onelog.gateways.amqp.refusals import RefusedError, not_implemented
from onelog.wire.amqp.codes import ReplyCode
from onelog.wire.amqp.methods import NUMBERS


def _open_again(channel: Channel) -> None:
    raise RefusedError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")


def _flow(channel: Channel, active: bool) -> None:
    if not active:
        raise not_implemented("active=false")
    channel.reply("channel.flow-ok", True)


def _recover(channel: Channel, requeue: bool) -> None:
    channel.consuming.recover(requeue)
    channel.reply("basic.recover-ok")


def _confirm(channel: Channel, nowait: bool) -> None:
    channel.publishing.confirm()
    channel.answer(nowait, "confirm.select-ok")


def _select(channel: Channel) -> None:
    channel.publishing.select()
    channel.reply("tx.select-ok")


_BY_NAME: dict[str, Handler] = {
    "channel.open": _open_again,
    "channel.flow": _flow,
    "channel.flow-ok": lambda channel, active: None,
    "channel.close": lambda channel, *reason: channel.closed_by_peer(),
    "access.request": lambda channel, *wanted: channel.reply("access.request-ok", 1),
    "exchange.declare": declaring.exchange_declare,
    "exchange.delete": declaring.exchange_delete,
    "exchange.bind": declaring.exchange_bind,
    "exchange.unbind": declaring.exchange_unbind,
    "queue.declare": declaring.queue_declare,
    "queue.bind": declaring.queue_bind,
    "queue.unbind": declaring.queue_unbind,
    "queue.purge": declaring.queue_purge,
    "queue.delete": declaring.queue_delete,
    "basic.qos": lambda channel, *how: channel.consuming.qos(*how),
    "basic.consume": lambda channel, *how: channel.consuming.consume(*how),
    "basic.cancel": lambda channel, *how: channel.consuming.cancel(*how),
    "basic.cancel-ok": lambda channel, tag: None,
    "basic.get": lambda channel, *how: channel.consuming.get(*how),
    "basic.nack": lambda channel, *how: channel.consuming.nack(*how),
    "basic.reject": lambda channel, *how: channel.consuming.reject(*how),
    "basic.recover": _recover,
    "basic.recover-async": lambda channel, requeue: channel.consuming.recover(requeue),
    "confirm.select": _confirm,
    "tx.select": _select,
    "tx.commit": lambda channel: channel.publishing.commit(),
    "tx.rollback": lambda channel: channel.publishing.roll_back(),
}
HANDLERS: dict[int, Handler] = {NUMBERS[name]: handler for name, handler in _BY_NAME.items()}
