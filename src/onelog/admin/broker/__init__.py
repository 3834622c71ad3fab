"""What operations do in the broker that is asked."""
