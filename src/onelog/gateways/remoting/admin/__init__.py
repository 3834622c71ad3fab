"""Requests of people and their tools."""
