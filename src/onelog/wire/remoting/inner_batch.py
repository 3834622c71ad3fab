"""Inner batches: many messages in one record, which a reader takes apart.

A RocketMQ broker keeps a batch that was sent to a topic of queue type BatchCQ as one record. Its
body is the batch as it was sent (see `send`), its queue offset that of the first message, and its
sysFlag has INNER_BATCH and NEED_UNWRAP. What has INNER_BATCH alone is left to those who know its
form.

Invariant: a message out of a batch has the batch's time, hosts and place in the log, and a flag,
properties, body and queue offset of its own. Its sysFlag keeps INNER_BATCH: the record at its place
in the log is not this message alone.
"""

from onelog.errors import WireError
from onelog.message import Message, QueueOffset, SysFlag
from onelog.wire.remoting.records import unpacked_body
from onelog.wire.remoting.send import split_batch

_BOTH = (SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP).value
_LEFT = ~(SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED).value


def unwrapped(messages: list[Message]) -> list[Message]:
    """The same messages, with those in batches one by one; `WireError` if that cannot be."""
    for message in messages:
        if message.sys_flag & _BOTH == _BOTH:
            return [inner for each in messages for inner in _inner(each)]
    return messages


def _inner(message: Message) -> list[Message]:
    if message.sys_flag & _BOTH != _BOTH:
        return [message]
    try:
        parts = split_batch(unpacked_body(message))
    except WireError as error:
        raise WireError(f"the batch at log offset {message.log_offset}: {error}") from None
    return [
        message._replace(
            queue_offset=QueueOffset(message.queue_offset + index),
            body=memoryview(body),
            properties=properties,
            flag=flag,
            sys_flag=message.sys_flag & _LEFT,
        )
        for index, (flag, body, properties) in enumerate(parts)
    ]
