"""The same log on several nodes: one of them leads, and the others follow, byte for byte."""
