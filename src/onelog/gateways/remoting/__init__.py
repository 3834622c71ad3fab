"""RocketMQ's remoting protocol: every request of its clients and admin tools."""
