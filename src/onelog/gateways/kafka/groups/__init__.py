"""Requests of groups: membership of both kinds, positions, and what administrators ask."""
