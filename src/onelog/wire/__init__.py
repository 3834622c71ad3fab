"""Bytes to values and back, one package per protocol. Sans-IO: nothing here knows a socket."""
