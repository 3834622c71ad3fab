"""Runs: messages of one queue that reach the log together, as if they had come one by one."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.errors import MessageTooLargeError, PropertiesTooLargeError, StoreFullError
from onelog.message import LOOPBACK, NewMessage, NewRun, Part
from onelog.store.message_store import MessageStore
from tests.store.samples import SAMPLE

V6 = bytes(15) + b"\1" + bytes(4)


def new_run(*parts: Part, topic: str = "orders", queue_id: int = 0, shared: bytes = b"") -> NewRun:
    source = b"".join(body + properties for _, body, properties in parts)
    return NewRun(topic, queue_id, parts, source, shared, born_ms=7)


def contents(folder: Path) -> dict[str, bytes]:
    """What a stopped store keeps, but for names that the time gave and what the time tells."""
    kept = [path for name in ("commitlog", "consumequeue") for path in (folder / name).rglob("*")]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in kept if path.is_file()}
    for number, path in enumerate(sorted((folder / "index").glob("*"))):
        found[f"index {number}"] = path.read_bytes()
    return found


def both_ways(folder: Path, runs: list[list[NewRun]], **changes: object) -> list[list[int]]:
    """Where the runs go, which is where their messages go one by one; so do all bytes."""
    config = replace(SAMPLE, **changes)  # type: ignore[arg-type]
    places: list[list[list[int]]] = []
    for name in ("runs", "messages"):
        found: list[list[int]] = []
        with MessageStore.open(folder / name, config, ManualClock()) as store:
            for together in runs:
                if name == "runs":
                    found += [list(run.log_offsets) for run in store.append_runs(together)]
                else:
                    appended = iter(store.append([m for run in together for m in run.messages()]))
                    found += [[next(appended).log_offset for _ in run.parts] for run in together]
        places.append(found)
    assert contents(folder / "runs") == contents(folder / "messages")
    assert places[0] == places[1]
    return places[0]


PARTS = st.tuples(
    st.integers(-(2**31), 2**31 - 1),
    st.binary(min_size=1, max_size=40),
    st.sampled_from([b"", b"UNIQ_KEY\x017F01\x02", b"UNIQ_KEY\x017F02", b"TAGS\x01a\x02"])
    | st.sampled_from([b"KEYS\x01k l", b"x\0"]),
)
RUNS = st.builds(
    lambda parts, topic, queue_id, shared, host, flags: new_run(
        *parts, topic=topic, queue_id=queue_id, shared=shared
    )._replace(born_host=host, sys_flag=flags),
    st.lists(PARTS, min_size=1, max_size=6),
    st.sampled_from(["orders", "n" * 130, "SCHEDULE_TOPIC_XXXX"]),
    st.integers(0, 2),
    st.sampled_from([b"", b"", b"WAIT\x01true\x02", b"KEYS\x01all\x02", b"TAGS\x01t\x02"]),
    st.sampled_from([LOOPBACK, LOOPBACK, V6]),
    st.sampled_from([0, 0, 1, 4, 8]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(RUNS, min_size=1, max_size=4), min_size=1, max_size=6), st.booleans())
def test_runs_are_stored_as_their_messages_would_be(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[NewRun]], record_crc: bool
) -> None:
    both_ways(tmp_path_factory.mktemp("store"), runs, record_crc=record_crc)


def test_a_run_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    run = new_run(*[(0, b"%04d" % number * 100, b"") for number in range(30)])
    places = both_ways(tmp_path, [[run], [run, run]])
    assert [{place // SAMPLE.segment_bytes for place in each} for each in places] == [
        {0},
        {0, 1},
        {1, 2},
    ]
    with MessageStore.open(tmp_path / "runs", SAMPLE) as store:
        bodies = [bytes(each.body[:4]) for each in store.messages("orders", 0, 0, 1_000)]
    assert bodies == [b"%04d" % number for number in range(30)] * 3


def test_keys_and_tags_of_a_run_are_found(tmp_path: Path) -> None:
    parts = [(0, b"%d" % number, b"KEYS\x01k%d" % number) for number in range(50)]
    with MessageStore.open(tmp_path, SAMPLE) as store:
        store.append_runs([new_run(*parts, shared=b"TAGS\x01a\x02")])
        (found,) = store.find_by_key("orders", "k33")
        assert bytes(store.message_at(found).body) == b"33"
        assert store.queue_table.get("orders", 0).entry(49)[2] == ord("a")


def test_a_run_with_a_part_that_is_too_large_leaves_nothing(tmp_path: Path) -> None:
    small, large = (0, b"x", b""), (0, b"x" * SAMPLE.segment_bytes, b"")
    with MessageStore.open(tmp_path, SAMPLE) as store:
        with pytest.raises(MessageTooLargeError, match="a segment of"):
            store.append_runs([new_run(small), new_run(small, large)])
        with pytest.raises(PropertiesTooLargeError):
            store.append_runs([new_run((0, b"x", b"p" * 32_768))])
        assert store.max_offset("orders", 0) == 0
        assert store.append([NewMessage("orders", 0, b"next")])[0] == (0, 0, 101)


def test_a_store_that_refuses_takes_no_runs(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        store.refuse_writes(StoreFullError("full"))
        with pytest.raises(StoreFullError):
            store.append_runs([new_run((0, b"x", b""))])
