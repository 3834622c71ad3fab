"""OneLog from the client's side: producers, consumers and administration, over the network only.

    from onelog.client import Message, Producer

    with Producer("orders-app", nameserver="127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"...", tags="paid", keys=["42"]))

It works with OneLog and with Apache RocketMQ 4.9 and 5. Each class exists for threads (`Producer`)
and for asyncio (`AsyncProducer`); errors are in `onelog.errors`, and all are `OnelogError`s.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onelog.client.admin.admin import Admin, AsyncAdmin
    from onelog.client.admin.topics import TopicChange
    from onelog.client.consumer.allocation import (
        AllocationStrategy,
        ByConfig,
        ByConsistentHash,
        ByNearbyRoom,
        ByRoom,
    )
    from onelog.client.consumer.listening import RetryLater
    from onelog.client.consumer.pull.consumer import (
        AsyncPullConsumer,
        PullConsumer,
        PullConsumerOptions,
    )
    from onelog.client.consumer.push.consumer import AsyncPushConsumer, PushConsumer
    from onelog.client.credentials import Credentials
    from onelog.client.extras.idempotent import (
        DbApiStore,
        HandledKeys,
        RedisStore,
        SqliteStore,
        idempotent,
    )
    from onelog.client.extras.trace_hook import TraceHook
    from onelog.client.hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
    from onelog.client.message import Message, Queue, Receipt, ReceivedMessage, SendStatus
    from onelog.client.options import ClientOptions, ConsumerOptions, ProducerOptions
    from onelog.client.producer.producer import AsyncProducer, Producer
    from onelog.client.producer.transactions import TransactionReceipt, TransactionState

__all__ = [
    "Admin",
    "AllocationStrategy",
    "AsyncAdmin",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "ByConfig",
    "ByConsistentHash",
    "ByNearbyRoom",
    "ByRoom",
    "ClientOptions",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumerOptions",
    "Credentials",
    "DbApiStore",
    "HandledKeys",
    "Message",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullConsumerOptions",
    "PushConsumer",
    "Queue",
    "Receipt",
    "ReceivedMessage",
    "RedisStore",
    "RetryLater",
    "SendContext",
    "SendHook",
    "SendStatus",
    "SqliteStore",
    "TopicChange",
    "TraceHook",
    "TransactionReceipt",
    "TransactionState",
    "idempotent",
]


_MODULES = {
    "admin.admin": (
        "Admin",
        "AsyncAdmin",
    ),
    "admin.topics": ("TopicChange",),
    "consumer.allocation": (
        "AllocationStrategy",
        "ByConfig",
        "ByConsistentHash",
        "ByNearbyRoom",
        "ByRoom",
    ),
    "consumer.listening": ("RetryLater",),
    "consumer.pull.consumer": (
        "AsyncPullConsumer",
        "PullConsumer",
        "PullConsumerOptions",
    ),
    "consumer.push.consumer": (
        "AsyncPushConsumer",
        "PushConsumer",
    ),
    "credentials": ("Credentials",),
    "extras.idempotent": (
        "DbApiStore",
        "HandledKeys",
        "RedisStore",
        "SqliteStore",
        "idempotent",
    ),
    "extras.trace_hook": ("TraceHook",),
    "hooks": (
        "ConsumeContext",
        "ConsumeHook",
        "SendContext",
        "SendHook",
    ),
    "message": (
        "Message",
        "Queue",
        "Receipt",
        "ReceivedMessage",
        "SendStatus",
    ),
    "options": (
        "ClientOptions",
        "ConsumerOptions",
        "ProducerOptions",
    ),
    "producer.producer": (
        "AsyncProducer",
        "Producer",
    ),
    "producer.transactions": (
        "TransactionReceipt",
        "TransactionState",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    # Most programs send, consume or administer, and hardly one does all of it.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found
