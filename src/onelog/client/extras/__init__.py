"""Additions to the client that one may do without."""
