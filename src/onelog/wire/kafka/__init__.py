"""Kafka's protocol: frames, and requests and answers by tables (`schemas.txt`)."""
