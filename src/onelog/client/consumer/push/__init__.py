"""Consumers that call listeners."""
