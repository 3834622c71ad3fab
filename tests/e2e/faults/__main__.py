"""`python -m tests.e2e.faults --seed 7 --rounds 20`: a campaign by hand, its logs kept."""

import argparse
import sys
from pathlib import Path

from tests.e2e.faults import servers
from tests.e2e.faults.campaign import CLIENT_KINDS, ROOT, run
from tests.e2e.faults.faults import KINDS


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", action="append", choices=list(KINDS), help="may be repeated")
    parser.add_argument("--without", action="append", choices=CLIENT_KINDS, default=[])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "faults")
    given = parser.parse_args()
    if reason := servers.why_not():
        print(reason, file=sys.stderr)
        return 2
    clients = [kind for kind in CLIENT_KINDS if kind not in given.without]
    folder = given.folder / f"seed-{given.seed}"
    outcome = run(folder, given.seed, given.rounds, only=given.only, clients=clients)
    print(f"histories and logs: {folder}")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
