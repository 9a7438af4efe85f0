"""What the caller may choose, and what is chosen for him."""
