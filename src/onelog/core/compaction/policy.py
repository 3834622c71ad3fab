"""What a topic's settings say about compaction; their names and defaults are Kafka's."""

from typing import NamedTuple

from onelog.core.catalog.topics import COMPACT, DELETE, TopicConfig

ACTIVE_MS = 60_000
"""What came in this time is the newest stretch of a queue, if `segment.ms` does not say less."""
_FOR_EVER = (1 << 63) - 1


class CompactionPolicy(NamedTuple):
    """How the queues of one topic are compacted."""

    deletes: bool
    """Whether messages go at their age, too."""
    lag_ms: int
    """Younger messages are left alone."""
    lag_max_ms: int
    """Older ones are not."""
    tombstone_ms: int
    """How long a tombstone stays, after what it deletes is gone."""
    dirty_ratio: float
    """The part of a queue that is new when it is worth to go over it."""
    retention_ms: int


def policy_of(config: TopicConfig, retention_ms: int) -> CompactionPolicy | None:
    """The topic's policy, where that is the retention time of others; None: it is not compacted."""
    given = config.attributes
    if COMPACT not in config.cleanup:
        return None
    return CompactionPolicy(
        DELETE in config.cleanup,
        max(
            int(given.get("min.compaction.lag.ms", 0)),
            min(int(given.get("segment.ms", ACTIVE_MS)), ACTIVE_MS),
        ),
        int(given.get("max.compaction.lag.ms", _FOR_EVER)),
        int(given.get("delete.retention.ms", 86_400_000)),
        float(given.get("min.cleanable.dirty.ratio", 0.5)),
        config.retention_ms or retention_ms,
    )
