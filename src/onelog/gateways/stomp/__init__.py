"""STOMP: clients of ActiveMQ and RabbitMQ, on the same log."""
