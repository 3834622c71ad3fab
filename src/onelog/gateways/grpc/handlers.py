"""Every method: who handles it, whether requests come as a stream, and how a status is told."""

from typing import Any

from onelog.gateways.grpc import lite_topics, pulling, receiving, routes, sending, transactions
from onelog.gateways.grpc.clients import tell_on_stream

HANDLERS: dict[str, tuple[Any, ...]] = {
    "QueryRoute": (routes.query_route,),
    "Heartbeat": (lambda call, request: call.gateway.clients.heartbeat(call, request),),
    "SendMessage": (sending.send_message,),
    "QueryAssignment": (routes.query_assignment,),
    "ReceiveMessage": (receiving.receive_message, False, receiving.tell_receiver),
    "AckMessage": (receiving.ack_message,),
    "ForwardMessageToDeadLetterQueue": (receiving.to_dead_letters,),
    "PullMessage": (pulling.pull_message, False, pulling.tell_puller),
    "UpdateOffset": (pulling.update_offset,),
    "GetOffset": (pulling.get_offset,),
    "QueryOffset": (pulling.query_offset,),
    "EndTransaction": (transactions.end_transaction,),
    "Telemetry": (
        lambda call, command: call.gateway.clients.telemetry(call, command),
        True,
        tell_on_stream,
    ),
    "NotifyClientTermination": (
        lambda call, request: call.gateway.clients.terminated(call, request),
    ),
    "ChangeInvisibleDuration": (receiving.change_invisible,),
    "RecallMessage": (transactions.recall_message,),
    "SyncLiteSubscription": (lite_topics.sync,),
}
