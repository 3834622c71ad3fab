"""Messages that were not consumed: when they come again, and where they end."""
