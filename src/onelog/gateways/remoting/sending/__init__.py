"""Requests that bring messages."""
