"""Kafka's protocol: producers, consumers and administrators of Kafka, on the same log."""
