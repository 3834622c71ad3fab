"""Where a protocol meets the core: each gateway translates, and maps errors in one table."""
