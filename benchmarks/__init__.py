"""Measurements, side by side with the peers, in one run on one machine.

`python -m benchmarks [suite ...]` runs suites (all by default), prints one table per suite and
keeps it in `benchmarks/results/`. A suite is a module with `run(options) -> list[Row]`. Where two
servers are compared they take turns (`rounds`). `python -m benchmarks compare REV` compares OneLog
with itself at another commit.
"""
