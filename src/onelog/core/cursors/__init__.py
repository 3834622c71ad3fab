"""Reading by position: fetches, and how far each group is."""
