"""Sends so many mebibytes of messages, as fast as they are acknowledged.

python -m tests.e2e.faults.filler NAMESERVERS TOPIC MIB
"""

import os
import sys

from onelog.client import Message, Producer
from onelog.errors import OnelogError

BODY_BYTES = 64 << 10
AT_ONCE = 64


def fill(nameservers: str, topic: str, mib: int) -> None:
    """Return when all is acknowledged; what failed is sent again."""
    left = (mib << 20) // BODY_BYTES
    body = os.urandom(BODY_BYTES)
    with Producer(
        "fillers", nameserver=nameservers, timeout=10, compress_over_bytes=2 * BODY_BYTES
    ) as producer:
        while left > 0:
            count = min(left, AT_ONCE)
            sends = [producer.send_async(Message(topic, body)) for _ in range(count)]
            for sending in sends:
                try:
                    sending.result()
                    left -= 1
                except OnelogError as error:
                    print(error, file=sys.stderr)


if __name__ == "__main__":
    fill(sys.argv[1], sys.argv[2], int(sys.argv[3]))
