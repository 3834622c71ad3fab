"""Several brokers as one Kafka cluster: who is where, agreed on at the first name server."""
