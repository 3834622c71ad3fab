"""Measurements, side by side with the peers, in one run on one machine.

`python -m benchmarks [suite ...]` runs suites (`store` by default), prints one table per suite and
keeps it in `benchmarks/results/`. A suite is a module with `run(options) -> list[Row]`.
"""
