"""Bytes of the log on their way to a replica: RocketMQ's two protocols, each from both sides."""
