"""`python -m tests.e2e.faults --seed 7 --rounds 20`: a campaign by hand, its logs kept."""

import argparse
import sys
from pathlib import Path

from tests.e2e.faults import servers
from tests.e2e.faults.campaign import CLIENT_KINDS, ROOT, run_all
from tests.e2e.faults.faults import KINDS


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults")
    parser.add_argument("--seed", type=int, default=1, help="of the first campaign")
    parser.add_argument("--campaigns", type=int, default=1, help="with seeds one after the other")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", action="append", choices=list(KINDS), help="may be repeated")
    parser.add_argument("--without", action="append", choices=CLIENT_KINDS, default=[])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "faults")
    given = parser.parse_args()
    if reason := servers.why_not():
        print(reason, file=sys.stderr)
        return 2
    clients = [kind for kind in CLIENT_KINDS if kind not in given.without]
    seeds = range(given.seed, given.seed + given.campaigns)
    total = run_all(given.folder, seeds, given.rounds, only=given.only, clients=clients)
    print("\n".join(total.told()))
    print(f"histories and logs: {given.folder}")
    return 1 if total.broken or total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
