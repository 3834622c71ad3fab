"""Writing topics."""
