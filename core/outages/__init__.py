"""Servers that are away: what passes by itself, who is waited for, what the user is told of it."""
