"""REST at `/v1`: everything that the command line can do, as one table of operations."""
