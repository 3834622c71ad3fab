"""An entry of a queue: where in the log a message lies. 20 bytes, big-endian, as RocketMQ's.

    int64 log offset | int32 size of the record | int64 tags code

Each message of a queue has one, also where one record holds many messages, so that the number of an
entry is the message's offset in the queue.
"""

from struct import Struct

import numpy as np

ENTRY = Struct(">qiq")
ENTRY_BYTES = ENTRY.size
ENTRY_DTYPE = np.dtype([("log", ">i8"), ("size", ">i4"), ("code", ">i8")])
PADDING_SIZE = 0x7FFFFFFF
"""The size in an entry that stands for a message which is in no log any more."""
PADDING = ENTRY.pack(0, PADDING_SIZE, 0)
