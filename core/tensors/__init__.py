"""Tensors of torch and numpy: their memory, their devices."""
