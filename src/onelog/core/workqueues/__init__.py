"""Queues that are declared, and consumed message by message: each message is one consumer's."""
