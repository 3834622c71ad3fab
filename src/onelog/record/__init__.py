"""What a record is: its bytes, and the messages in it. Store, wire and Spark stand on it."""
