"""The forms that a record's body can have, and the message that all of them can be turned into.

A message is kept in the form in which it came, and the record says which that is: bits 16 to 19 of
its sysFlag, which RocketMQ leaves at 0. A reader of the same form gets the bytes as they are; for
any other reader they are converted, once, through the neutral message. So a form is one module
with two functions, `to_neutral` and `from_neutral`, and N forms need 2 N converters.

    form        body of the record                         messages in it
    rocketmq    RocketMQ's own: the message's body          one, or an inner batch
    kafka       one record batch, magic 2, as it came       as many as the batch counts
    amqp        exchange, key, properties and body          one
    mqtt        topic, properties and payload of a PUBLISH  one

A record that holds many messages is an inner batch: it has a queue offset, and an entry in the
queue, for each of them. Entries of other forms than RocketMQ's do not have the hash of tags, which
each message has for itself, but `FORM_CODE`, which is no hash: whoever filters has to look.

Invariant: `to_neutral(from_neutral(message))` is the message, in every form.
"""

from enum import IntEnum

FORM_SHIFT = 16
FORM_MASK = 0xF << FORM_SHIFT
FORM_CODE = 1 << 32


class Form(IntEnum):
    """What a record's body is."""

    ROCKETMQ = 0
    KAFKA = 1
    AMQP = 2
    MQTT = 3

    @property
    def sys_flag(self) -> int:
        """The bits of a record's sysFlag that say so."""
        return self << FORM_SHIFT


def form_of(sys_flag: int) -> int:
    """The number of the form that a record's sysFlag names; a `Form`, if this version knows it."""
    return (sys_flag & FORM_MASK) >> FORM_SHIFT
