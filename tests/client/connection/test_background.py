"""The background loop: one per process, never waited for in vain, and gone with its process."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from onelog.client.connection import background
from onelog.errors import ForkedError, WrongLoopError
from tests.client.forking import in_a_child


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_a_coroutine_runs_there_and_its_result_comes_back() -> None:
    assert background.run(answer(42)) == 42


def test_what_it_raises_is_raised_here() -> None:
    async def fail() -> None:
        raise ZeroDivisionError("there")

    with pytest.raises(ZeroDivisionError, match="there"):
        background.run(fail())


def test_there_is_one_loop_whoever_asks_first() -> None:
    found: list[asyncio.AbstractEventLoop] = []
    threads = [threading.Thread(target=lambda: found.append(background.loop())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert found[0] is background.current().loop


def test_the_loop_does_not_wait_for_itself() -> None:
    async def call_a_synchronous_face() -> None:
        background.run(answer(1))

    with pytest.raises(WrongLoopError, match="would wait for itself"):
        background.run(call_a_synchronous_face())


def test_another_event_loop_may_be_running_in_the_calling_thread() -> None:
    async def main() -> int:
        return background.run(answer(7))

    assert asyncio.run(main()) == 7


def test_a_child_has_a_loop_of_its_own_and_none_of_the_parents() -> None:
    parents = background.current()

    def use() -> str:
        assert background.run(answer(5)) == 5
        assert background.loop() is not parents.loop
        with pytest.raises(ForkedError, match="made before the process forked"):
            parents.check_usable()
        return f"usable: {parents.is_usable} {background.current().is_usable}"

    assert in_a_child(use) == "usable: False True"
    assert parents.is_usable
    assert background.run(answer(6)) == 6


def run_script(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_interpreter_ends_though_the_loop_is_busy() -> None:
    process = run_script(
        """
        import asyncio
        from onelog.client.connection import background

        async def forever():
            while True:
                await asyncio.sleep(0.001)

        asyncio.run_coroutine_threadsafe(forever(), background.loop())
        print("bye")
        """
    )
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == (b"bye\n", b"", 0)


def test_the_interpreter_ends_though_the_loop_does_not_answer() -> None:
    process = run_script(
        """
        import time
        from onelog.client.connection import background
        background.STOP_SECONDS_MAX = 0.1
        background.loop().call_soon_threadsafe(time.sleep, 3600)
        print("bye")
        """
    )
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == (b"bye\n", 0)


def test_ctrl_c_that_another_thread_was_told_of_ends_the_waiting() -> None:
    process = run_script(
        """
        import asyncio, signal
        from onelog.client.connection import background
        background.LOOK_SECONDS = 0.05

        async def forever():
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(3600)

        try:
            background.run(forever())
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    out, err = process.communicate(timeout=60)
    assert (out, err) == (b"interrupted\n", b"")


def test_ctrl_c_ends_the_waiting_and_cancels_the_work() -> None:
    process = run_script(
        """
        import asyncio
        from onelog.client.connection import background

        async def forever():
            print("waiting")
            try:
                await asyncio.sleep(3600)
            finally:
                print("cancelled")

        try:
            background.run(forever())
        except KeyboardInterrupt:
            background.run(asyncio.sleep(0.05))
            print("interrupted")
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, err) == (b"cancelled\ninterrupted\n", b"")
