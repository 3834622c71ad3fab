"""`python -m benchmarks [suite ...] [--quick] [--folder DIR]`; `compare REV` is a mode apart.

A suite that takes long may have parts that can be run alone, and shorter: `--only sync --seconds 15
--rounds 4` of `replication`.
"""

import argparse
import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import compare
from benchmarks.table import Options, Row, keep, machine_facts, show

SUITES = {
    "store": "benchmarks.store",
    "rocketmq": "benchmarks.rocketmq_peer",
    "kafka": "benchmarks.kafka",
    "amqp": "benchmarks.amqp",
    "amqp-backlog": "benchmarks.amqp_backlog",
    "kafka-growth": "benchmarks.kafka_growth",
    "replication": "benchmarks.replication",
    "growth": "benchmarks.growth",
    "transactions": "benchmarks.transactions",
    "timers": "benchmarks.timers",
    "client-sends": "benchmarks.client_sends",
    "client-pushes": "benchmarks.client_pushes",
    "official-client": "benchmarks.official_client",
    "grpc": "benchmarks.grpc",
    "mqtt": "benchmarks.mqtt",
    "stomp": "benchmarks.stomp",
    "embedded": "benchmarks.embedded",
    "observing": "benchmarks.observing",
    "access": "benchmarks.access",
    "spark": "benchmarks.spark",
    "spark-kafka": "benchmarks.spark_kafka",
}
# Not the system's temporary folder: that one is often memory, and the store is about disks.
FOLDER = Path(__file__).resolve().parent.parent / "build"

Suite = Callable[[Options], list[Row]]


def main() -> int:
    if sys.argv[1:2] == ["compare"]:
        return compare.main(sys.argv[2:], FOLDER)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure OneLog, side by side with its peers.",
        epilog="`compare REV` measures it side by side with itself at another commit.",
    )
    parser.add_argument(
        "suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}; default: all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="less data, under a minute; nothing is kept"
    )
    parser.add_argument("--only", metavar="PART", default="", help="one part of a suite")
    parser.add_argument("--seconds", type=int, help="how long each measurement of the part lasts")
    parser.add_argument("--rounds", type=int, help="how often each is made")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write test data")
    given = parser.parse_args()
    names = list(dict.fromkeys(given.suites)) or [name for name in SUITES if _is_here(name)]
    unknown = [name for name in names if not _is_here(name)]
    if unknown:
        here = ", ".join(name for name in SUITES if _is_here(name))
        print(f"no suite {', '.join(map(repr, unknown))}; there is: {here}", file=sys.stderr)
        return 2
    # In a file or a pipe there is no width to keep to.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        _run(name, given, console)
    return 0


def _is_here(name: str) -> bool:
    return name in SUITES and importlib.util.find_spec(SUITES[name]) is not None


def _run(name: str, given: argparse.Namespace, console: Console) -> None:
    # Imported only now: a suite may need what others do without.
    suite: Suite = importlib.import_module(SUITES[name]).run
    facts = machine_facts()
    with (
        tempfile.TemporaryDirectory(
            prefix="bench-", dir=given.folder, ignore_cleanup_errors=True
        ) as own,
        console.status("") as status,
    ):

        def announce(text: str) -> None:
            if console.is_terminal:
                status.update(f"{name}: {text}")
            else:
                print(f"{name}: {text}", flush=True)

        options = Options(Path(own), given.quick, announce, given.only, given.seconds, given.rounds)
        rows = suite(options)
    show(name, rows, console)
    if given.quick:
        console.print("a quick run: nothing kept")
        return
    date = datetime.now(UTC).date().isoformat()
    for path in keep(f"{name}-{given.only}" if given.only else name, date, facts, rows):
        console.print(f"kept benchmarks/results/{path.name}")


if __name__ == "__main__":
    sys.exit(main())
