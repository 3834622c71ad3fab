"""What `onelog bench` does: how fast a cluster takes and gives messages, measured through the SDK.

Installed beside `onelog`, so that every user can measure a cluster of theirs.
"""
