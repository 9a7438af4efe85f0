"""Versions of Python and of other libraries: in each environment, streamer is imported and loads from every storage."""
