"""The arguments of a call, as one value."""
