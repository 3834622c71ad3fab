"""MQTT 3.1, 3.1.1 and 5: clients publish and subscribe on the same log as everybody else."""
