"""RocketMQ's gRPC protocol: HTTP/2, the messages in it, and the codes of its answers."""
