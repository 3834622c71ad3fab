"""Decided, recorded, answered when safe: the tables, and everything that waits."""
