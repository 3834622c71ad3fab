"""What there is: topics and groups, and what they may be called."""
