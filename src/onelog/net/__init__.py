"""Sockets: listening, connections, and calling other nodes. The only code that owns any."""
