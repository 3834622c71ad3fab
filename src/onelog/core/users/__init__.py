"""Who there is: users, their roles and passwords, and what they may do."""
