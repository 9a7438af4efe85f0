"""What a call asks for, as one value."""
