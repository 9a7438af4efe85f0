"""Saves checkpoints: the public functions are in `save.py`, and `streamer` exports them."""
