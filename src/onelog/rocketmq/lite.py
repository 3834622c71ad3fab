"""Lite topics: thousands of small queues of one topic, made by being written to.

The messages of lite topic `l` of topic `t` are stored once, in a queue of `t`, and entered in the
light queue `%LMQ%$t$l`, which is read by those who want that lite topic.
"""

import re

from onelog.names import LIGHT_QUEUE_PREFIX

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def queue_name(topic: str, lite_topic: str) -> str:
    """The light queue of a lite topic."""
    return f"{LIGHT_QUEUE_PREFIX}${topic}${lite_topic}"


def is_legal(name: str, characters_max: int) -> bool:
    """Whether a lite topic may be called so."""
    return len(name) <= characters_max and _NAME.fullmatch(name) is not None
