"""Requests that fetch messages, and what consumers tell the broker."""
