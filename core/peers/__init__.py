"""Caches of other machines as sources of a load: who they are, what they hold, and the server that each of them is."""
