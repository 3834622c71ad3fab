"""Requests that fetch messages, and the membership of consumers."""
