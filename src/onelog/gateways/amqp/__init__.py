"""RabbitMQ's protocol, AMQP 0-9-1: exchanges, queues and consumers, on the same log."""
