"""Consuming message by message: each is handed to one consumer, and acknowledged or returned."""
