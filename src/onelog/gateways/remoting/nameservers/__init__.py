"""The broker as a client of its name servers."""
