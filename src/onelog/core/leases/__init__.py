"""Reading by lease: a message is handed out for a time, and acknowledged, released or expired."""
