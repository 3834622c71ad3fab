"""OneLog from the client's side: producers, consumers and administration, over the network only.

    from onelog.client import Message, Producer

    with Producer("orders-app", nameserver="127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"...", tags="paid", keys=["42"]))

It works with OneLog and with Apache RocketMQ 4.9 and 5. Each class exists for threads (`Producer`)
and for asyncio (`AsyncProducer`); errors are in `onelog.errors`, and all are `OnelogError`s.
"""

from typing import TYPE_CHECKING

from onelog.client.acl import Credentials
from onelog.client.allocation import (
    AllocationStrategy,
    ByConfig,
    ByConsistentHash,
    ByNearbyRoom,
    ByRoom,
)
from onelog.client.handled_keys import DbApiStore, HandledKeys, SqliteStore
from onelog.client.hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
from onelog.client.idempotent import idempotent
from onelog.client.listening import RetryLater
from onelog.client.message import Message, Queue, Receipt, ReceivedMessage, SendStatus
from onelog.client.options import ClientOptions, ConsumerOptions, ProducerOptions
from onelog.client.producer import AsyncProducer
from onelog.client.pull_consumer import AsyncPullConsumer, PullConsumerOptions
from onelog.client.push_consumer import AsyncPushConsumer
from onelog.client.redis_store import RedisStore
from onelog.client.sync_producer import Producer
from onelog.client.sync_pull_consumer import PullConsumer
from onelog.client.sync_push_consumer import PushConsumer
from onelog.client.trace_hook import TraceHook
from onelog.client.transactions import TransactionReceipt, TransactionState

if TYPE_CHECKING:
    from onelog.client.admin import AsyncAdmin
    from onelog.client.sync_admin import Admin

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
    "TraceHook",
    "TransactionReceipt",
    "TransactionState",
    "idempotent",
]


def __getattr__(name: str) -> object:
    # Most programs send or consume and never administer, and that half is the larger one.
    if name == "Admin":
        from onelog.client.sync_admin import Admin

        return Admin
    if name == "AsyncAdmin":
        from onelog.client.admin import AsyncAdmin

        return AsyncAdmin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
