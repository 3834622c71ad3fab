"""Bytes on disk: the log, the queues that index it, and the key index. Synchronous, one writer."""
