"""One program of AMQP's methods, done by a broker step by step: what it answers, and what it has.

A step is a name and its arguments; `Side.do` does it, and says what the broker said, in a form that
can be compared with what another broker says. Clients are three: two channels of one connection,
and one of another. A channel or a connection that the broker closes is opened again.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    UnroutableError,
)

Step = tuple[str, Mapping[str, Any]]
CLIENTS = 3
_CONNECTION_OF = (0, 0, 1)
_SECONDS = 30
_TIMED = ("time",)
"""What differs in two brokers of each entry of x-death."""


class Side:
    """One broker, and what its clients hold."""

    def __init__(self, url: str) -> None:
        self._parameters = pika.URLParameters(url)
        self._parameters.socket_timeout = self._parameters.blocked_connection_timeout = _SECONDS
        self._connections = [self._connected() for _ in range(2)]
        self._channels = [self._opened(number) for number in range(CLIENTS)]
        self._observers = [connection.channel() for connection in self._connections]
        self._tags: list[list[int]] = [[] for _ in range(CLIENTS)]
        """Deliveries that each client has not settled."""
        self._heard: list[list[object]] = [[] for _ in range(CLIENTS)]
        """What each client was delivered and nobody has asked for."""
        self._consumers: dict[str, tuple[int, bool]] = {}
        """The consumer of each queue: whose it is, and whether it is exclusive."""
        self._prefix = ""

    def close(self) -> None:
        """The end."""
        for connection in self._connections:
            with contextlib.suppress(pika.exceptions.AMQPError):
                connection.close()

    def _connected(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(self._parameters)

    def _opened(self, number: int) -> BlockingChannel:
        channel = self._connections[_CONNECTION_OF[number]].channel()
        channel.confirm_delivery()
        return channel

    # -- a program -----------------------------------------------------------------------------

    def begin(self, prefix: str) -> None:
        """Names of queues and exchanges are this program's own from now on."""
        self._prefix = prefix
        for number in range(CLIENTS):
            self._reopen(number)

    def clean(self, queues: list[str], exchanges: list[str]) -> None:
        """Nothing is left of a program."""
        for number in range(CLIENTS):
            self._reopen(number)
        for at in range(2):
            for name in queues:
                with contextlib.suppress(ChannelClosedByBroker):
                    self._observer(at).queue_delete(self._prefix + name)
            for name in exchanges:
                with contextlib.suppress(ChannelClosedByBroker):
                    self._observer(at).exchange_delete(self._prefix + name)

    def _observer(self, at: int) -> BlockingChannel:
        if not self._observers[at].is_open:
            self._observers[at] = self._connections[at].channel()
        return self._observers[at]

    def counts(self, queues: list[str]) -> dict[str, object]:
        """How many messages and consumers each queue has, for each connection."""
        found: dict[str, object] = {}
        for name in queues:
            for at in range(2):
                try:
                    said = self._observer(at).queue_declare(self._prefix + name, passive=True)
                except ChannelClosedByBroker as error:
                    found[f"{name}/{at}"] = error.reply_code
                    if error.reply_code == 404:
                        break
                else:
                    method = said.method
                    found[f"{name}/{at}"] = method.message_count, method.consumer_count
                    break
        return found

    def heard(self) -> list[list[object]]:
        """What was delivered to each client since it was asked last.

        `counts` has asked every queue: what these had to say before is on its way to the channels.
        """
        for client in {client for client, _ in self._consumers.values()}:
            self._channels[client].basic_qos()
        for connection in self._connections:
            connection.process_data_events(0)
        heard, self._heard = self._heard, [[] for _ in range(CLIENTS)]
        return heard

    def do(self, step: Step) -> object:
        """What the broker says to a step."""
        name, arguments = step
        client = arguments.get("client", 0)
        try:
            return getattr(self, f"_{name}")(
                client, **{key: value for key, value in arguments.items() if key != "client"}
            )
        except ChannelClosedByBroker as error:
            self._reopen(client)
            return "channel", error.reply_code
        except ConnectionClosedByBroker as error:
            at = _CONNECTION_OF[client]
            self._connections[at] = self._connected()
            for number in range(CLIENTS):
                if _CONNECTION_OF[number] == at:
                    self._reopen(number)
            return "connection", error.reply_code

    def _reopen(self, client: int) -> None:
        with contextlib.suppress(pika.exceptions.AMQPError):
            self._channels[client].close()
        self._channels[client] = self._opened(client)
        self._tags[client] = []
        self._consumers = {
            queue: each for queue, each in self._consumers.items() if each[0] != client
        }

    # -- steps ---------------------------------------------------------------------------------

    def _named(self, name: Any) -> Any:
        if not isinstance(name, str):
            return name
        return name if not name or name.startswith("amq.") else self._prefix + name

    def _declare_queue(self, client: int, queue: str, **how: Any) -> object:
        arguments = dict(how.pop("arguments", None) or {})
        if "x-dead-letter-exchange" in arguments:
            arguments["x-dead-letter-exchange"] = self._named(arguments["x-dead-letter-exchange"])
        if arguments.get("x-dead-letter-routing-key", "").startswith("q"):
            arguments["x-dead-letter-routing-key"] = self._named(
                arguments["x-dead-letter-routing-key"]
            )
        said = (
            self._channels[client]
            .queue_declare(self._named(queue), arguments=arguments, **how)
            .method
        )
        return said.message_count, said.consumer_count

    def _delete_queue(self, client: int, queue: str, **how: Any) -> object:
        return self._channels[client].queue_delete(self._named(queue), **how).method.message_count

    def _purge(self, client: int, queue: str) -> object:
        return self._channels[client].queue_purge(self._named(queue)).method.message_count

    def _declare_exchange(self, client: int, exchange: str, **how: Any) -> object:
        arguments = dict(how.pop("arguments", None) or {})
        if "alternate-exchange" in arguments:
            arguments["alternate-exchange"] = self._named(arguments["alternate-exchange"])
        self._channels[client].exchange_declare(self._named(exchange), arguments=arguments, **how)
        return "ok"

    def _delete_exchange(self, client: int, exchange: str, **how: Any) -> object:
        self._channels[client].exchange_delete(self._named(exchange), **how)
        return "ok"

    def _bind(self, client: int, to: str, exchange: str, key: str, **how: Any) -> object:
        return self._change_binding("bind", client, to, exchange, key, **how)

    def _unbind(self, client: int, to: str, exchange: str, key: str, **how: Any) -> object:
        return self._change_binding("unbind", client, to, exchange, key, **how)

    def _change_binding(
        self, what: str, client: int, to: str, exchange: str, key: str, **how: Any
    ) -> object:
        kind = "exchange" if to.startswith("e") else "queue"
        change = getattr(self._channels[client], f"{kind}_{what}")
        change(self._named(to), self._named(exchange), self._key(key), **how)
        return "ok"

    def _key(self, key: str) -> str:
        """Keys that are names of queues are this program's, too."""
        return self._named(key) if key.startswith("q") else key

    def _publish(
        self, client: int, exchange: str, key: str, body: bytes, mandatory: bool, **properties: Any
    ) -> object:
        if "CC" in (properties.get("headers") or {}):
            carbon = [self._key(each) for each in properties["headers"]["CC"]]
            properties["headers"] = {**properties["headers"], "CC": carbon}
        try:
            self._channels[client].basic_publish(
                self._named(exchange),
                self._key(key),
                body,
                pika.BasicProperties(**properties),
                mandatory=mandatory,
            )
        except UnroutableError as error:
            return "returned", [each.method.reply_code for each in error.messages]
        except NackError:
            return "refused"
        return "ok"

    def _consume(
        self, client: int, queue: str, prefetch: int, auto_ack: bool, exclusive: bool
    ) -> object:
        """A queue has one consumer: who of several gets a message is for each broker to choose."""
        other = self._consumers.get(queue)
        if other is not None and not (exclusive or other[1]):
            return "skipped"
        channel = self._channels[client]
        channel.basic_qos(prefetch_count=prefetch)

        def deliver(_: object, method: Any, properties: Any, body: bytes) -> None:
            if not auto_ack:
                self._tags[client].append(method.delivery_tag)
            self._heard[client].append(self._delivery(method, properties, body))

        # A second consumer is refused, and its channel closed; pika itself wants another tag.
        tag = queue if other is None else f"{queue}-too"
        channel.basic_consume(
            self._named(queue), deliver, auto_ack=auto_ack, exclusive=exclusive, consumer_tag=tag
        )
        self._consumers[queue] = client, exclusive
        return "ok"

    def _cancel(self, client: int, queue: str) -> object:
        found = self._consumers.pop(queue, None)
        if found is not None:
            # What is on its way is not lost: pika gives it to the callback first.
            self._channels[found[0]].basic_cancel(queue)
        return "ok"

    def _get(self, client: int, queue: str, auto_ack: bool) -> object:
        method, properties, body = self._channels[client].basic_get(self._named(queue), auto_ack)
        if method is None:
            return "empty"
        if not auto_ack:
            self._tags[client].append(method.delivery_tag)
        return method.message_count, self._delivery(method, properties, body)

    def _delivery(self, method: Any, properties: Any, body: bytes) -> object:
        said = {name: value for name, value in vars(properties).items() if value is not None}
        said["headers"] = self._comparable(said.get("headers"))
        return (
            body,
            method.redelivered,
            self._bare(method.exchange),
            self._bare(method.routing_key),
            method.delivery_tag,
            said,
        )

    def _bare(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    def _comparable(self, value: Any) -> Any:
        """Headers without times, and without this program's own prefix."""
        if isinstance(value, dict):
            return {
                name: self._comparable(each) for name, each in value.items() if name not in _TIMED
            }
        if isinstance(value, list):
            return [self._comparable(each) for each in value]
        return self._bare(value) if isinstance(value, str) else value

    def _settle(
        self, client: int, how: str, at: int, multiple: bool = False, requeue: bool = False
    ) -> object:
        """Acknowledge, reject or give back one of those that a client has; or one it has not.

        The broker says nothing, so something is asked that it has to answer.
        """
        tags = self._tags[client]
        tag = tags[at % len(tags)] if tags and at >= 0 else (0 if at == -1 else 999)
        channel = self._channels[client]
        if how == "ack":
            channel.basic_ack(tag, multiple)
        elif how == "nack":
            channel.basic_nack(tag, multiple, requeue)
        else:
            multiple = False
            channel.basic_reject(tag, requeue)
        channel.basic_qos()
        self._tags[client] = [
            each for each in tags if each != tag and not (multiple and (each < tag or not tag))
        ]
        return "ok"

    def _recover(self, client: int) -> object:
        self._channels[client].basic_recover(True)
        self._tags[client] = []
        return "ok"

    def _close(self, client: int) -> object:
        self._reopen(client)
        return "ok"
