"""Whatever is written, compacted, stopped, killed or expired, in any order: readers have it all."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.record.forms.kafka import Codec
from tests.core.compaction.queues import (
    MINUTE,
    TOPIC,
    Pair,
    Seen,
    latest,
    make,
    pulled_by_rocketmq,
    seen,
    send,
)
from tests.core.world import World

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
PAIRS = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.binary(min_size=1, max_size=3))), min_size=1, max_size=5
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), PAIRS, st.sampled_from([Codec.NONE, Codec.LZ4])),
        st.tuples(st.just("send_by_rocketmq"), KEYS, st.binary(min_size=1, max_size=3)),
        st.tuples(st.just("wait"), st.sampled_from([3, 2_000, 2 * MINUTE, 20 * MINUTE])),
        st.tuples(st.just("stop"), st.sampled_from(["restart", "crash"])),
        st.tuples(st.just("expire")),
    ),
    max_size=16,
)


class Table:
    """A compacted topic, and what must be in it."""

    def __init__(self, world: World, keys_max: int) -> None:
        self.world, self._keys_max = world, keys_max
        self.written: list[Seen] = []
        make(world)
        world.topic("noise", 1)
        self._started()

    def _started(self) -> None:
        self.world.core.compaction.keys_max = self._keys_max

    def send(self, pairs: list[Pair], codec: Codec) -> None:
        offset = send(self.world, *pairs, codec=codec)
        self.written += [Seen(offset + at, *pair) for at, pair in enumerate(pairs)]

    def send_by_rocketmq(self, key: bytes, value: bytes) -> None:
        place = self.world.send(TOPIC, body=value, KEYS=key.decode())
        self.written.append(Seen(place.queue_offset, key, value))

    def wait(self, ms: int) -> None:
        self.world.advance(ms)

    def stop(self, how: str) -> None:
        getattr(self.world, how)()
        self._started()

    def expire(self) -> None:
        """The log is old, and goes; half of its segments are this topic's neighbours'."""
        for _ in range(2):
            for _ in range(12):
                self.world.send("noise", body=bytes(100_000))
            self.world.clock.advance(4 * 86_400_000)
            for _ in range(3):
                self.world.retain()
                self.world.advance(1_000)

    def check(self, begin: int) -> None:
        found = seen(self.world)
        assert latest(found) == latest(self.written)
        for each in found:
            assert self.written[each.offset] == each
        assert seen(self.world, begin) == [each for each in found if each.offset >= begin]
        offsets = [offset for offset, _ in pulled_by_rocketmq(self.world)]
        assert offsets == [each.offset for each in found]
        assert self.world.store.min_offset(TOPIC, 0) == 0
        assert self.world.store.max_offset(TOPIC, 0) == len(self.written)


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    keys_max=st.sampled_from([1, 3, 100]),
    begin=st.floats(0, 1),
    stop=st.sampled_from(["", "crash", "restart"]),
)
def test_the_last_value_of_each_key_is_read(
    steps: list[tuple[str, *tuple[object, ...]]], keys_max: int, begin: float, stop: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table(World(Path(folder) / "store"), keys_max)
        for step, *values in steps:
            getattr(table, step)(*values)
            if stop:
                table.stop(stop)
            table.check(int(begin * len(table.written)))
        table.world.close()
