"""Sessions that outlive connections: who has one, what was exchanged, and what is retained."""
