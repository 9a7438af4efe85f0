"""Formats of checkpoints other than safetensors: each is a plug-in that finds the tensors in its files."""
