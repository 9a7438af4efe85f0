"""Keeps secrets out of messages, reprs and logs."""
