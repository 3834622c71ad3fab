"""STOMP 1.0, 1.1 and 1.2: frames of text with a body of bytes."""
