"""MQTT 3.1, 3.1.1 and 5: packets, and the properties of version 5."""
