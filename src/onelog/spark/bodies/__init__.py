"""Bodies as typed columns."""
