"""AMQP 0-9-1 as RabbitMQ speaks it: frames, methods, and contents across frames."""
