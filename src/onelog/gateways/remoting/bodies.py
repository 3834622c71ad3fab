"""The core's values as bodies of the protocol, and lists that are too long for one body."""

from collections.abc import Iterable

from onelog.core.broker import Broker
from onelog.core.filters.tags import Subscription
from onelog.core.membership.members import Client
from onelog.wire.remoting import fields
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import Connection, SubscriptionData
from onelog.wire.remoting.registration import DataVersion as WireVersion

PAGE_MAX = 2_000
"""RocketMQ's splitMetadataSize: entries of a list in one answer, for those who ask page by page."""


def broker_address(broker: Broker) -> str:
    """Host and port that clients connect to."""
    host = broker.admin.config.client_host
    return (
        f"[{host}]:{broker.admin.config.port}"
        if ":" in host
        else f"{host}:{broker.admin.config.port}"
    )


def queue_body(broker: Broker, topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(broker_name=broker.admin.config.name, queue_id=queue_id, topic=topic)


def subscription_body(subscription: Subscription) -> SubscriptionData:
    """What a consumer wants of a topic."""
    return SubscriptionData(
        code_set=sorted(subscription.codes or ()),
        expression_type=subscription.kind,
        sub_string=subscription.expression,
        sub_version=subscription.version,
        tags_set=sorted(subscription.tags),
        topic=subscription.topic,
    )


def connection_body(client: Client) -> Connection:
    return Connection(
        client_addr=client.address,
        client_id=client.client_id,
        language=client.language,
        version=client.version,
    )


def page(
    names: Iterable[str], ext: dict[str, str], seq: str, count: str, version: WireVersion
) -> list[str]:
    """The names that a request for all of them gets, in the order of the alphabet.

    That is all, or, if it has one of the fields `seq`, `count` and `dataVersion`, a page. A page
    after the first makes sense only as long as nothing changes: otherwise it is the first again.
    """
    ordered = sorted(names)
    if not ext.keys() & {seq, count, "dataVersion"}:
        return ordered
    first = max(0, fields.int32(ext, seq, 0))
    size = max(0, min(fields.int32(ext, count, PAGE_MAX), PAGE_MAX))
    if first:
        known = ext.get("dataVersion", "")
        if not known.strip() or WireVersion.decode(known.encode()) != version:
            first = 0
    return ordered[first : first + size]
