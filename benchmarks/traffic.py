"""The messages that the store suite appends, made before the clock starts."""

import itertools
import os
from collections.abc import Iterator, Sequence

from onelog.message import LOOPBACK, NewMessage, encode_properties

LIST_MESSAGES = 64
BORN_MS = 1_700_000_000_000
TAGS = ("TagA", "TagB", "TagC", "TagD")
HOST = LOOPBACK

QueueName = tuple[str, int]


def queues(topics: int, queues_per_topic: int, prefix: str = "bench") -> list[QueueName]:
    """The names of so many queues."""
    return [(f"{prefix}-{t}", q) for t in range(topics) for q in range(queues_per_topic)]


def unique_key(number: int) -> str:
    """A unique id of the length that RocketMQ's clients give their messages."""
    return f"7F0000010A2B18B4AAC2{number:012X}"


def lists(
    count: int,
    body_bytes: int,
    names: Sequence[QueueName],
    *,
    keyed: bool = False,
    list_messages: int = LIST_MESSAGES,
    start: int = 0,
) -> Iterator[list[NewMessage]]:
    """`count` lists of messages, spread evenly over the queues.

    With `keyed`, every message has a tag and a unique key, as a RocketMQ producer sends them.
    """
    body = os.urandom(body_bytes)
    numbers = itertools.count(start)
    tagged = [encode_properties({"TAGS": tag, "UNIQ_KEY": ""})[:-1] for tag in TAGS]
    round_robin = itertools.cycle(names)
    for _ in range(count):
        made = []
        for number in itertools.islice(numbers, list_messages):
            topic, queue_id = next(round_robin)
            properties = b""
            if keyed:
                properties = b"%b%b\x02" % (tagged[number & 3], unique_key(number).encode())
            made.append(NewMessage(topic, queue_id, body, properties, 0, 0, BORN_MS, HOST, HOST))
        yield made
