"""Simulate clusters: `python -m tests.simulation SEED --steps N` replays what a seed did."""

import argparse
import contextlib
import os
import sys
import time
import traceback

from tests.simulation.bugs import BUGS
from tests.simulation.cluster import Cluster


def run(seed: int, steps: int, *, lines: int, aloud: bool) -> bool:
    """Simulate one seed; False, with a trace, if something did not hold."""
    began = time.monotonic()
    with Cluster(seed, tell=print if aloud else None) as cluster:
        try:
            cluster.run(steps)
        except Exception:
            if not aloud:
                print(cluster.kernel.told(lines))
            traceback.print_exc(file=sys.stdout)
            print(f"seed {seed} failed at step {cluster.kernel.steps}; to see it again:")
            print(f"    python -m tests.simulation {seed} --steps {steps} --aloud")
            return False
    took_s = time.monotonic() - began
    print(
        f"seed {seed}: {cluster.plan}; {len(cluster.masters)} masters, {steps} steps with faults, "
        f"{cluster.kernel.steps} in all in {took_s:.1f} s, "
        f"{cluster.kernel.now_us / 1e6:.0f} s simulated, {cluster.clients.answers} answers, "
        f"{cluster.clients.refusals} refusals, {len(cluster.settled.log)} bytes, "
        f"digest {cluster.kernel.digest:08x}, "
        f"{dict(sorted(cluster.trouble.made.items()))}"
    )
    return True


def main() -> int:
    """Simulate some seeds."""
    arguments = argparse.ArgumentParser(prog="python -m tests.simulation")
    arguments.add_argument("seed", type=int, nargs="+")
    arguments.add_argument("--steps", type=int, default=5_000)
    arguments.add_argument("--to", type=int, help="all seeds from the first up to this one")
    arguments.add_argument("--bug", choices=sorted(BUGS), help="put a bug in, until it is found")
    arguments.add_argument("--lines", type=int, default=100, help="of the trace of a failure")
    arguments.add_argument("--aloud", action="store_true", help="print everything as it happens")
    given = arguments.parse_args()
    seeds = range(given.seed[0], given.to + 1) if given.to else given.seed
    failed = []
    with BUGS.get(given.bug, contextlib.nullcontext)():
        for seed in seeds:
            if not run(seed, given.steps, lines=given.lines, aloud=given.aloud):
                failed.append(seed)
                if given.bug:
                    break
    if failed:
        print(f"failed: {failed}")
    return bool(failed)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of texts is the same in each run only so.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
