"""What shows OneLog at work: a shop with its orders, a sales board, and both in one demonstration.

Installed beside `onelog`, which knows nothing of it but for the commands that run it.
"""
