"""Unique ids: Java's form, never twice, not even after a fork."""

import ipaddress
import os
import time
from datetime import datetime

import pytest

from onelog.client.producer import unique_id as module
from onelog.client.producer.unique_id import client_id, local_ip, unique_id
from tests.client.forking import in_a_child


def parts(text: str) -> tuple[str, int, bytes, int, int]:
    raw = bytes.fromhex(text)
    assert text == text.upper()
    assert len(raw) == 16
    return (
        str(ipaddress.ip_address(raw[:4])),
        int.from_bytes(raw[4:6], "big"),
        raw[6:10],
        int.from_bytes(raw[10:14], "big"),
        int.from_bytes(raw[14:], "big"),
    )


def test_an_id_is_laid_out_as_javas() -> None:
    before_ms = time.time() * 1000
    address, process, _, since_ms, _ = parts(unique_id())
    now = datetime.now().astimezone()
    month = datetime(now.year, now.month, 1).timestamp() * 1000  # noqa: DTZ001
    assert address == local_ip()
    assert process == os.getpid() & 0xFFFF
    assert before_ms - 1000 <= month + since_ms <= time.time() * 1000 + 1000


def test_ids_differ_and_count_up() -> None:
    ids = [unique_id() for _ in range(5_000)]
    assert len(set(ids)) == 5_000
    first, second = parts(ids[0]), parts(ids[1])
    assert (second[4] - first[4]) % 65_536 == 1
    assert first[:3] == second[:3]


def test_the_counter_wraps_within_its_two_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_counter", iter([65_535, 65_536]))
    assert [parts(unique_id())[4] for _ in range(2)] == [65_535, 0]


def test_the_time_starts_again_with_the_month(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_month_ms", 0)
    monkeypatch.setattr(module, "_next_month_ms", 0)

    def ms(*when: int) -> int:
        return round(datetime(*when).timestamp() * 1000)  # type: ignore[arg-type]  # noqa: DTZ001

    assert parts(unique_id(ms(2023, 12, 31, 23, 59, 59)))[3] == 31 * 86_400_000 - 1_000
    assert parts(unique_id(ms(2024, 1, 1)))[3] == 0
    assert parts(unique_id(ms(2024, 2, 1, 0, 0, 1)))[3] == 1_000
    # A clock that is set back over the beginning of the month makes no negative times.
    assert parts(unique_id(ms(2024, 1, 31)))[3] == 0
    assert parts(unique_id())[3] > 0


def test_a_forked_child_makes_ids_of_its_own() -> None:
    mine = parts(unique_id())
    theirs = parts(in_a_child(unique_id))
    assert theirs[:2] != mine[:2]
    assert theirs[2] != mine[2]


def test_client_ids_name_the_machine_and_the_process() -> None:
    first, second = client_id(), client_id()
    assert first.startswith(f"{local_ip()}@{os.getpid()}#")
    assert first != second
