"""Reading a request's own fields, which all travel as texts.

A field that is missing or not of its type raises `InvalidRequestError` with the words that
RocketMQ uses; the request is then answered with an error and the connection lives on.

How long a text may be is checked once, where frames are read (`frame`): whoever handles a request
never sees a longer one. What a topic or a group may be called is narrower, and the core's business.
"""

from onelog.errors import InvalidRequestError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

NAME_CHARS_MAX = 1_024
"""Of names, ids, addresses and receipts. A header of no more bytes has no text that is too long."""
TEXT_CHARS_MAX = 32_767
"""Of everything else: filters, keys, lists of topics, and fields that nobody here reads."""
FIELDS_MAX = 256
"""In one request; RocketMQ's largest has about 20."""
NAMES = frozenset(
    (
        "a",
        "b",
        "c",
        "n",
        "producerGroup",
        "topic",
        "defaultTopic",
        "consumerGroup",
        "group",
        "groupName",
        "srcGroup",
        "destGroup",
        "compareGroup",
        "clientId",
        "clientID",
        "clientAddr",
        "attemptId",
        "extraInfo",
        "recallHandle",
        "msgId",
        "originMsgId",
        "transactionId",
        "brokerName",
        "brokerAddr",
        "haServerAddr",
        "cluster",
        "clusterName",
        "namespace",
        "__ZONE_NAME",
        "statsName",
        "statsKey",
        "query",
        "operation",
        "attempt",
        "expType",
        "expressionType",
        "boundaryType",
        "topicFilterType",
        "dataVersion",
        "username",
        "subject",
        "resource",
        "filter",
        "subjectFilter",
        "resourceFilter",
        "AccessKey",
        "SecurityToken",
        "Signature",
    )
)
"""The fields that are kept, looked up or logged by their value."""
# OneLog's own fields. RocketMQ's brokers and clients pass over fields that they do not know.
BULK_BYTES = "onelogBulkBytes"
"""In a pull: how many bytes of records the answer may have, wherever they come from; maxMsgNums is
then taken at its word, too. The broker has limits of its own (`broker.pull_bulk_bytes_max`)."""
AS_STORED = "onelogAsStored"
"""In such a pull, and then in its answer: true, if records are as they are stored, of whatever form
they are. Batches are whole, so the first may begin before queueOffset; by tags they are not chosen.
It does not go with SQL conditions, and a broker that converts records says nothing."""
TOPIC_CREATED_MS = "onelogTopicCreatedMs"
"""In the answer to GET_TOPIC_STATS_INFO: when the topic came into being. A topic that was deleted
and made again has another time, however far its new queues have grown."""
STABLE_ENDS = "onelogStableEnds"
"""In the same answer, of each queue with an open transaction of Kafka's: where the first begins, as
`0=120,3=98`. Readers of committed messages, and that is everybody who pulls, stop there."""
EMPTY_BODIES = "onelogEmptyBodies"
"""In a batch that is sent: true, if bodies in it may be empty, which RocketMQ's clients refuse."""
BOUNDED_BY_THEIR_READERS = frozenset(("i", "properties", "note"))
"""Properties are refused as a message's part, in RocketMQ's words; `note` is OneLog's own."""


def too_long(ext: dict[str, str]) -> str | None:
    """What is wrong with the lengths of a request's fields, if anything is."""
    if len(ext) > FIELDS_MAX:
        return f"the request has {len(ext)} fields; the limit is {FIELDS_MAX}"
    for name, value in ext.items():
        if len(value) > NAME_CHARS_MAX and name not in BOUNDED_BY_THEIR_READERS:
            most = NAME_CHARS_MAX if name in NAMES else TEXT_CHARS_MAX
            if len(value) > most:
                return (
                    f"the custom field <{name[:40]}> has {len(value)} characters; the limit is "
                    f"{most}"
                )
    return None


def text(ext: dict[str, str], name: str) -> str:
    """A field that must be there."""
    try:
        return ext[name]
    except KeyError:
        raise InvalidRequestError(f"the custom field <{name}> is null") from None


def number(ext: dict[str, str], name: str, default: int | None = None) -> int:
    """A field that is a 64-bit integer; it must be there unless a default is given."""
    value = ext.get(name)
    if value:
        if len(value) < 19 and value.isdecimal() and value.isascii():
            return int(value)
    elif default is not None:
        return default
    return _integer(ext, name, default, INT64_MAX)


def int32(ext: dict[str, str], name: str, default: int | None = None) -> int:
    """A field that is a 32-bit integer; it must be there unless a default is given."""
    value = ext.get(name)
    if value:
        if len(value) < 10 and value.isdecimal() and value.isascii():
            return int(value)
    elif default is not None:
        return default
    return _integer(ext, name, default, INT32_MAX)


def _integer(ext: dict[str, str], name: str, default: int | None, most: int) -> int:
    value = ext.get(name)
    if value is None or value == "":
        if default is None:
            raise InvalidRequestError(f"the custom field <{name}> is null")
        return default
    # int() alone would take "1_000", " 7 " and digits of other scripts, which Java refuses.
    digits = value[1:] if value[0] in "+-" else value
    if digits.isdecimal() and digits.isascii() and len(digits) <= 20:
        result = int(value)
        if -most - 1 <= result <= most:
            return result
    raise InvalidRequestError(f"the custom field <{name}> is not a number: {value[:40]!r}")


def flag(ext: dict[str, str], name: str, default: bool = False) -> bool:
    """A field that is true or false; as in Java, everything but "true" is false."""
    value = ext.get(name)
    return default if value is None else value.lower() == "true"
