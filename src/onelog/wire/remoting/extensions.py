"""Fields that OneLog adds to RocketMQ's requests and answers.

Invariant: whoever does not know them loses nothing but what they ask for. RocketMQ's brokers and
clients pass over fields that they do not know.
"""

BULK_BYTES = "onelogBulkBytes"
"""In a pull: how many bytes of records the answer may have, wherever they come from; maxMsgNums is
then taken at its word, too. The broker has limits of its own (`broker.pull_bulk_bytes_max`)."""

TOPIC_CREATED_MS = "onelogTopicCreatedMs"
"""In the answer to GET_TOPIC_STATS_INFO: when the topic came into being. A topic that was deleted
and made again has another time, however far its new queues have grown."""
