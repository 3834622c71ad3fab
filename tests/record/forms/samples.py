"""Kafka batches as tests write them into topics."""

from onelog.message import NewMessage
from onelog.record.forms import Form, kafka
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral


def neutrals(count: int) -> list[Neutral]:
    """Messages of all kinds: null keys, null bodies, tags, headers that no property can be."""
    return [
        Neutral(
            None if number % 3 == 0 else b"key-%d" % number,
            None if number % 5 == 0 else b"body-%d" % number,
            (("TAGS", b"even" if number % 2 == 0 else b"odd"), ("raw", b"\x00\xff"), ("raw", None)),
            1_700_000_000_000 + number,
        )
        for number in range(count)
    ]


def kafka_batch(
    messages: list[Neutral], topic: str = "orders", queue_id: int = 0, codec: Codec = Codec.LZ4
) -> NewMessage:
    """One record with all these messages, in Kafka's form."""
    return NewMessage(
        topic,
        queue_id,
        kafka.from_neutral(messages, codec=codec),
        sys_flag=Form.KAFKA.sys_flag,
        inner_count=len(messages),
    )
