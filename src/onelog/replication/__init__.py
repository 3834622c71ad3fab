"""Replicas of a broker: the same log on several nodes, one of which is the master."""
