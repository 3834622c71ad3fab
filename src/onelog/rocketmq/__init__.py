"""What is RocketMQ's alone, above the core: its names, its config files, what its broker left.

Importing this imports nothing: clients and the name server take `names` from here.
"""
