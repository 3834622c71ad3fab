"""Members that let the broker share the queues out, and who chooses how they consume."""

from functools import partial

from onelog.core.access import SELF
from onelog.core.membership.assignment import STRATEGIES, Mode, RequestMode, shared
from onelog.errors import InvalidRequestError
from onelog.gateways.remoting.names import usable_group
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.names import LIGHT_QUEUE_PREFIX
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import (
    Assignment,
    AssignmentAnswer,
    AssignmentRequest,
)
from onelog.wire.remoting.clients import RequestMode as WireMode
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

ALL_QUEUES = -1
_MODES: dict[str, Mode] = {"PULL": "PULL", "POP": "POP"}


def query_assignment(session: BrokerSession, command: Command) -> None:
    """QUERY_ASSIGNMENT: which queues of a topic a member shall consume, and how."""
    request = AssignmentRequest.decode(command.body)
    group, topic = request.consumer_group, request.topic
    mode = session.broker.request_mode(session.principal, group, topic)
    answer = partial(_answer, session, command, request, mode)
    if topic.startswith(LIGHT_QUEUE_PREFIX):
        name = session.broker.config.name
        answer([MessageQueue(broker_name=name, topic=topic)])
    else:
        session.gateway.routes.find(topic, answer)


def _answer(
    session: BrokerSession,
    command: Command,
    request: AssignmentRequest,
    mode: RequestMode,
    queues: list[MessageQueue],
) -> None:
    assigned = _assigned(session, request, mode, queues) if queues else None
    if assigned is None:
        # No list at all: the member keeps what it has. An empty one would take it away.
        session.answer(command, Success(body=b"{}"))
        return
    assignments = [Assignment(message_queue=queue, mode=mode.mode) for queue in assigned]
    session.answer(
        command, Success(body=AssignmentAnswer(message_queue_assignments=assignments).encode())
    )


def _assigned(
    session: BrokerSession,
    request: AssignmentRequest,
    mode: RequestMode,
    queues: list[MessageQueue],
) -> list[MessageQueue] | None:
    """The queues of the member that asks; None if that cannot be said now."""
    if request.message_model == "BROADCASTING":
        return queues
    live = session.broker.live_group(SELF, request.consumer_group)
    strategy = STRATEGIES.get(request.strategy_name or "")
    if live is None or strategy is None:
        return None
    if live.find(request.client_id) is None:
        return []
    # Queues of members without this topic would be read by nobody. Whoever asks wants it, even if
    # its heartbeat does not say so yet.
    members = sorted({*live.subscriber_ids(request.topic), request.client_id})
    number = members.index(request.client_id)
    if mode.mode == "PULL":
        return strategy(queues, number, len(members))
    found = shared(queues, number, len(members), strategy, mode.share)
    if found is not None:
        return found
    brokers = dict.fromkeys(queue.broker_name for queue in queues)
    return [
        MessageQueue(broker_name=name, queue_id=ALL_QUEUES, topic=request.topic) for name in brokers
    ]


def set_request_mode(session: BrokerSession, command: Command) -> Success:
    """SET_MESSAGE_REQUEST_MODE: how a group consumes a topic from now on."""
    request = WireMode.decode(command.body)
    mode = _MODES.get(request.mode)
    if mode is None:
        raise InvalidRequestError(f"there is no mode {request.mode[:40]!r}; there are PULL and POP")
    session.broker.admin.set_request_mode(
        session.principal,
        usable_group(session.broker, request.consumer_group),
        request.topic,
        RequestMode(mode, request.pop_share_queue_num),
    )
    return Success()


HANDLERS: dict[int, Handler] = {
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
}
