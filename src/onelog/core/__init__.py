"""What the broker means: topics, groups, cursors, publishing, pulling. No sockets, no wire."""
