"""Every command of a client, and what handles it."""

from onelog.gateways.stomp import sending, subscriptions, transactions
from onelog.gateways.stomp.session import Handler, disconnect

HANDLERS: dict[str, Handler] = {
    "SEND": sending.send,
    "SUBSCRIBE": subscriptions.subscribe,
    "UNSUBSCRIBE": subscriptions.unsubscribe,
    "ACK": subscriptions.acknowledge,
    "NACK": subscriptions.refuse,
    "BEGIN": transactions.begin,
    "COMMIT": transactions.commit,
    "ABORT": transactions.abort,
    "DISCONNECT": disconnect,
}
