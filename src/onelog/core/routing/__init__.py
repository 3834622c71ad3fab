"""Routing: a message has an exchange and a key, and bindings say into which queues it goes."""
