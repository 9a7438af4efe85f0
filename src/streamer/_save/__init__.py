"""Saves checkpoints: the public functions are in `save`, `streamer` names them."""
