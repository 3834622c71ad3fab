"""OneLog: one log, every queue. A message broker in pure Python."""

__version__ = "0.1.0"
