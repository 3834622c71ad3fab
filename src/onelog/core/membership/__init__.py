"""Who is in a group, who gets which queues, who holds which lock."""
