"""What an administrator does with a cluster."""
