"""Messages that wait for their time: timed ones, and RocketMQ's levels."""
