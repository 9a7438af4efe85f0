"""Tensors, bytes and blocks: what a checkpoint is, what to read, what went wrong. Knows no storage."""
