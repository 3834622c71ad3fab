"""The pair of transports is held against real sockets: the same tests run on both."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.net.memory import READ_BYTES_MAX
from tests.net.recorder import Pair, Recorder, in_memory
from tests.waiting import eventually

Connect = Callable[..., Awaitable[Pair]]


@pytest.fixture(params=["tcp", "memory"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:

        async def connected(theirs: Recorder | None = None, ours: Recorder | None = None) -> Pair:
            if request.param == "memory":
                pair = in_memory(theirs, ours)
            else:
                accepted = theirs or Recorder()
                server = await loop.create_server(lambda: accepted, "127.0.0.1", 0)
                address = server.sockets[0].getsockname()
                _, dialled = await loop.create_connection(lambda: ours or Recorder(), *address)
                await eventually(lambda: accepted.events)
                server.close()
                pair = Pair(dialled, accepted)
            for end in (pair.ours, pair.theirs):
                stack.callback(end.transport.abort)
            return pair

        yield connected
    await asyncio.sleep(0.01)


async def test_bytes_arrive_in_order_in_both_directions(connect: Connect) -> None:
    pair = await connect()
    for n in range(100):
        pair.ours.transport.write(bytes([n]))
        pair.theirs.transport.write(memoryview(bytes([n, n])))
    pair.ours.transport.writelines([b"x", bytearray(b"y"), memoryview(b"z")])
    await eventually(lambda: pair.theirs.size == 103 and pair.ours.size == 200)
    assert pair.theirs.received == bytes(range(100)) + b"xyz"
    assert pair.ours.received == bytes(n for n in range(100) for _ in range(2))


async def test_closing_loses_nothing_that_was_written(connect: Connect) -> None:
    pair = await connect()
    pair.ours.transport.write(bytes(300_000))
    pair.ours.transport.write(b"last")
    pair.ours.transport.close()
    assert pair.ours.transport.is_closing()
    await pair.both_lost()
    assert pair.theirs.size == 300_004
    assert pair.theirs.events == ["made", "eof", "lost"]
    assert (pair.ours.events[-1], pair.ours.events.count("lost")) == ("lost", 1)
    assert pair.ours.error is pair.theirs.error is None


async def test_what_is_written_after_closing_is_dropped(connect: Connect) -> None:
    pair = await connect()
    pair.ours.transport.close()
    pair.ours.transport.write(b"late")
    pair.ours.transport.close()
    await pair.both_lost()
    assert pair.theirs.received == b""


async def test_nothing_is_read_after_closing(connect: Connect) -> None:
    pair = await connect()
    pair.theirs.transport.write(b"too late")
    pair.ours.transport.close()
    await pair.both_lost()
    assert pair.ours.received == b""


async def test_aborting_ends_both_sides(connect: Connect) -> None:
    pair = await connect()
    pair.ours.transport.abort()
    pair.ours.transport.abort()
    await pair.both_lost()
    assert pair.ours.events.count("lost") == pair.theirs.events.count("lost") == 1
    assert pair.ours.error is None


async def test_aborting_does_not_wait_for_who_does_not_read(connect: Connect) -> None:
    pair = await connect()
    pair.theirs.transport.pause_reading()
    pair.ours.transport.write(bytes(32 << 20))
    await asyncio.sleep(0)
    pair.ours.transport.abort()
    await eventually(lambda: "lost" in pair.ours.events)
    assert pair.theirs.size == 0


async def test_who_does_not_read_fills_the_write_buffer_of_the_other(connect: Connect) -> None:
    pair = await connect()
    transport = pair.ours.transport
    transport.set_write_buffer_limits(high=1000)
    assert transport.get_write_buffer_limits() == (250, 1000)
    pair.theirs.transport.pause_reading()
    assert not pair.theirs.transport.is_reading()
    size = 32 << 20
    transport.write(bytes(size))
    assert pair.ours.events == ["made", "pause"]
    assert 1000 < transport.get_write_buffer_size() <= size
    await asyncio.sleep(0.01)
    assert pair.theirs.received == b""
    assert pair.ours.events == ["made", "pause"]
    pair.theirs.transport.resume_reading()
    await eventually(lambda: pair.theirs.size == size)
    await eventually(lambda: "resume" in pair.ours.events)
    assert transport.get_write_buffer_size() == 0
    assert pair.ours.events == ["made", "pause", "resume"]


async def test_a_paused_side_reads_on_where_it_stopped_and_then_the_end(connect: Connect) -> None:
    pair = await connect()
    pair.theirs.transport.pause_reading()
    pair.ours.transport.write(b"one")
    pair.ours.transport.write(b"two")
    pair.ours.transport.close()
    await eventually(lambda: "lost" in pair.ours.events)
    await asyncio.sleep(0.01)
    assert (pair.theirs.received, pair.theirs.events) == (b"", ["made"])
    pair.theirs.transport.resume_reading()
    await pair.both_lost()
    assert (pair.theirs.received, pair.theirs.events) == (b"onetwo", ["made", "eof", "lost"])


async def test_one_direction_can_end_before_the_other(connect: Connect) -> None:
    pair = await connect(Recorder(keep_open=True))
    assert pair.ours.transport.can_write_eof()
    pair.ours.transport.write(b"question")
    pair.ours.transport.write_eof()
    with pytest.raises(RuntimeError, match="after write_eof"):
        pair.ours.transport.write(b"more")
    await eventually(lambda: "eof" in pair.theirs.events)
    assert pair.theirs.received == b"question"
    pair.theirs.transport.write(b"answer")
    pair.theirs.transport.close()
    await pair.both_lost()
    assert (pair.ours.received, pair.ours.events) == (b"answer", ["made", "eof", "lost"])


async def test_who_waits_for_a_reader_that_leaves_learns_of_it(connect: Connect) -> None:
    pair = await connect()
    pair.ours.transport.pause_reading()
    pair.theirs.transport.pause_reading()
    pair.ours.transport.write(bytes(32 << 20))
    assert "pause" in pair.ours.events
    await asyncio.sleep(0.01)
    pair.theirs.transport.close()
    await eventually(lambda: "lost" in pair.theirs.events)
    while "lost" not in pair.ours.events:
        if not pair.ours.transport.is_closing():
            pair.ours.transport.write(b"more")
        await asyncio.sleep(0.001)


async def test_a_protocol_that_fails_ends_its_connection(connect: Connect) -> None:
    loop = asyncio.get_running_loop()
    said: list[str] = []
    loop.set_exception_handler(lambda _, context: said.append(str(context.get("exception"))))
    pair = await connect()
    pair.theirs.fail = ZeroDivisionError("a bug")
    pair.ours.transport.write(b"x")
    await pair.both_lost()
    assert said == ["a bug"]


async def test_both_ends_know_the_addresses(connect: Connect) -> None:
    pair = await connect()
    for one, other in ((pair.ours, pair.theirs), (pair.theirs, pair.ours)):
        here = one.transport.get_extra_info("sockname")
        assert here == other.transport.get_extra_info("peername")
        assert one.transport.get_extra_info("ssl_object") is None


async def test_another_protocol_can_take_over(connect: Connect) -> None:
    pair = await connect()
    taker = Recorder()
    pair.theirs.transport.set_protocol(taker)
    assert pair.theirs.transport.get_protocol() is taker
    pair.ours.transport.write(b"for the new one")
    await eventually(lambda: taker.received)
    assert (taker.received, pair.theirs.received) == (b"for the new one", b"")


# What only memory has.


async def test_a_single_write_arrives_as_the_same_object() -> None:
    seen: list[bytes] = []

    class Keeping(Recorder):
        def data_received(self, data: bytes) -> None:
            seen.append(data)

    pair = in_memory(Keeping())
    data = bytes(1 << 20)
    pair.ours.transport.write(data)
    assert seen == []
    await asyncio.sleep(0)
    assert seen[0] is data
    half = bytes(READ_BYTES_MAX // 2)
    for each in (half, half, b"more", data):
        pair.ours.transport.write(each)
    await eventually(lambda: len(seen) > 3)
    assert list(map(len, seen[1:])) == [READ_BYTES_MAX, 4, 1 << 20]


async def test_limits_that_make_no_sense_are_refused() -> None:
    pair = in_memory()
    transport = pair.ours.transport
    with pytest.raises(ValueError, match="must be >= low"):
        transport.set_write_buffer_limits(high=1, low=2)
    transport.set_write_buffer_limits(low=2)
    assert transport.get_write_buffer_limits() == (2, 8)
    pair.theirs.transport.pause_reading()
    transport.write(bytes(5))
    assert "pause" not in pair.ours.events
    transport.set_write_buffer_limits(high=4)
    assert "pause" in pair.ours.events
    transport.set_write_buffer_limits(high=40)
    await eventually(lambda: "resume" in pair.ours.events)


async def test_nothing_is_left_of_a_connection_for_the_collector_to_find() -> None:
    pair = in_memory()
    gone = [weakref.ref(each) for each in (pair.ours, pair.theirs)]
    gc.disable()
    try:
        pair.ours.transport.close()
        await pair.both_lost()
        del pair
        await asyncio.sleep(0)
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "pause", "resume", "tick", "limits"]),
        st.integers(0, 1),
        st.integers(0, 400_000),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, closer=st.integers(0, 1))
def test_whatever_happens_in_between_everything_written_is_read(
    steps: list[tuple[str, int, int]], closer: int
) -> None:
    async def run() -> None:
        pair = in_memory()
        ends = [pair.ours, pair.theirs]
        written = [bytearray(), bytearray()]
        for number, (what, side, size) in enumerate(steps):
            transport = ends[side].transport
            if what == "write":
                written[side] += bytes([number]) * size
                transport.write(bytes([number]) * size)
            elif what == "pause":
                transport.pause_reading()
            elif what == "resume":
                transport.resume_reading()
            elif what == "limits":
                transport.set_write_buffer_limits(high=size)
            else:
                await asyncio.sleep(0)
            low, high = transport.get_write_buffer_limits()
            waits = transport.get_write_buffer_size()
            assert waits == len(written[side]) - ends[1 - side].size
            is_paused = ends[side].events.count("pause") > ends[side].events.count("resume")
            assert is_paused or waits <= high
            assert low <= high
        for end in ends:
            end.transport.resume_reading()
        # The one who closes would not read what is under way to him.
        await eventually(lambda: ends[closer].received == written[1 - closer])
        ends[closer].transport.close()
        await pair.both_lost()
        for side in (0, 1):
            assert ends[1 - side].received == written[side]
            pauses, resumes = (ends[side].events.count(each) for each in ("pause", "resume"))
            assert 0 <= pauses - resumes <= (side == closer)
            assert ends[side].events[-1] == "lost"

    asyncio.run(run())
