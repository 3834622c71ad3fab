"""Name servers and brokers that answer as a test tells them to, on real sockets."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

from onelog.client.connection.address import Address
from onelog.clock import ManualClock
from onelog.net.connection import Connection
from onelog.net.listener import Listener
from onelog.net.remoting import RemotingSession
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.routes import BrokerData, QueueData, TopicRouteData
from onelog.wire.remoting.send import encode_send_response

Answer = Callable[[RemotingSession, Command], None]
SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)


def silent(session: RemotingSession, command: Command) -> None:
    """A half-dead node takes requests and does not answer."""


def hang_up(session: RemotingSession, command: Command) -> None:
    session.connection.abort()


def refusing(code: int, remark: str) -> Answer:
    return lambda session, command: session.reply(command, code, remark=remark)


class ScriptedNode:
    """A node that writes down what it is asked."""

    address: Address

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        """May be changed at any time."""
        self.requests: list[Command] = []
        self.sessions: list[RemotingSession] = []

    def codes(self) -> list[int]:
        return [command.code for command in self.requests]

    def sends(self) -> list[Command]:
        return [command for command in self.requests if command.code in SENDS]


class _Session(RemotingSession):
    def __init__(self, connection: Connection, node: ScriptedNode) -> None:
        super().__init__(connection)
        self._node = node
        node.sessions.append(self)

    def handle(self, command: Command) -> None:
        self._node.requests.append(command)
        self._node.answer(self, command)


@contextlib.asynccontextmanager
async def scripted(answer: Answer, port: int = 0) -> AsyncIterator[ScriptedNode]:
    """A node for as long as the block lasts."""
    node = ScriptedNode(answer)
    listener = await Listener.open(
        "127.0.0.1", port, lambda connection: _Session(connection, node), clock=ManualClock()
    )
    node.address = Address(*listener.address)
    try:
        yield node
    finally:
        await listener.close()


def knowing(routes: Mapping[str, TopicRouteData]) -> Answer:
    """A name server that knows these topics."""

    def answer(session: RemotingSession, command: Command) -> None:
        route = routes.get(command.ext.get("topic", ""))
        if route is None:
            session.reply(command, ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
        else:
            session.reply(command, body=route.encode())

    return answer


def route_data(
    brokers: Mapping[str, Address], queues: int = 2, perm: int = 6, order: str | None = None
) -> TopicRouteData:
    """A topic with so many queues on each of these masters."""
    return TopicRouteData(
        broker_datas=[
            BrokerData(broker_name=name, cluster="c", broker_addrs={0: str(address)})
            for name, address in brokers.items()
        ],
        queue_datas=[
            QueueData(broker_name=name, perm=perm, read_queue_nums=queues, write_queue_nums=queues)
            for name in brokers
        ],
        order_topic_conf=order,
    )


def storing(session: RemotingSession, command: Command) -> None:
    """A broker that takes everything."""
    if command.code in SENDS and not command.is_oneway:
        offset_id = "7F00000100002A9F0000000000000001"
        answer = encode_send_response(command.opaque, offset_id, int(command.ext["e"]), 7, "TX")
        session.connection.write(answer)
    else:
        session.reply(command)
