"""RocketMQ 5's gRPC protocol: what its proxy does, done by the broker itself."""
