"""Queues of which only the last message of each key is kept."""
