"""Messages of every kind a store meets, the same for the same seed.

The counterpart of `Corpus.java`. Run as a program it appends some of them to a store, prints what
the store then holds, and dies without closing it:

    python -m tests.e2e.store_corpus DIR SEED COUNT
"""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from onelog.config import StoreConfig
from onelog.message import NewMessage, SysFlag, encode_host, encode_properties
from onelog.store.message_store import MessageStore
from tests.e2e.store_lines import store_lines

# Small files, so that a few hundred messages fill several of each kind.
CONFIG = StoreConfig(
    segment_bytes=64 * 1024, queue_file_entries=16, index_slots=64, index_entries=256
)
LONG_TOPIC = "%RETRY%" + "long-" * 30
_LIGHT_QUEUES = ("%LMQ%left", "%LMQ%right")
_TAGS = ("", "paid", "refund", "Größe", "タグ", "🚀🚀", "a-rather-long-tag-whose-hash-overflows")
_KEYS = ("", "order-{0}", "order-{0} cart-{1}", " spaced-{0}  out-{1} ", "ключ-{0}", "🔑{0}")
_BORN_MS = 1_700_000_000_000
_TRANSACTIONS = (SysFlag.PREPARED, SysFlag.ROLLED_BACK, SysFlag.COMMITTED)


def corpus(seed: int, count: int, *, long_topic: bool) -> Iterator[NewMessage]:
    """`count` messages: topics, tags, keys, hosts, transactions, delays, light queues, sizes."""
    dice = random.Random(seed)
    for number in range(count):
        topic, queue_id = dice.choice([("Orders", 4), ("Clicks", 2), ("%RETRY%billing", 1)])
        properties = {"TAGS": dice.choice(_TAGS)}
        key_number = dice.randrange(1 + number // 4)
        properties["KEYS"] = dice.choice(_KEYS).format(key_number, key_number % 7)
        if dice.random() < 0.6:
            properties["UNIQ_KEY"] = f"{seed:016X}{number:016X}"
        if dice.random() < 0.2:
            properties["städtchen"] = "Köln am Rhein, 東京, 🌍"
        message = NewMessage(
            topic,
            dice.randrange(queue_id),
            dice.randbytes(dice.randrange(9000 if dice.random() < 0.03 else 400)),
            flag=dice.choice([0, 0, 7, -1]),
            born_ms=_BORN_MS + number,
            born_host=encode_host(dice.choice(["192.0.2.1", "2001:db8::1"]), 40_000 + number),
            store_host=encode_host("2001:db8::17" if dice.random() < 0.1 else "192.0.2.17", 10_911),
            reconsume_times=dice.randrange(3),
        )
        kind = dice.randrange(20)
        if kind == 0:
            # Level 18 is two hours away: no broker that opens the store delivers it meanwhile.
            properties["DELAY"] = "18"
            message = message._replace(topic="SCHEDULE_TOPIC_XXXX", queue_id=17)
        elif kind == 1:
            flags = dice.choice(_TRANSACTIONS)
            message = message._replace(sys_flag=int(flags), prepared_offset=4711)
        elif kind == 2 and long_topic:
            message = message._replace(topic=LONG_TOPIC, queue_id=0)
        elif kind == 3:
            message = message._replace(topic="Clicks", queue_id=0, extra_queues=_LIGHT_QUEUES)
        present = {name: value for name, value in properties.items() if value}
        yield message._replace(properties=encode_properties(present))


def append(store: MessageStore, seed: int, count: int, *, long_topic: bool) -> None:
    """Append messages in lists of several lengths."""
    dice = random.Random(seed)
    messages = [*corpus(seed, count, long_topic=long_topic)]
    while messages:
        length = dice.choice([1, 1, 7, 30])
        store.append(messages[:length])
        del messages[:length]


if __name__ == "__main__":
    opened = MessageStore.open(Path(sys.argv[1]), CONFIG)
    append(opened, int(sys.argv[2]), int(sys.argv[3]), long_topic=False)
    print("\n".join(map(json.dumps, store_lines(opened))), flush=True)
    os._exit(0)
