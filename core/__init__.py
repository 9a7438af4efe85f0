"""Tensors, bytes and blocks: formats of checkpoints, plans of reads, errors. It has no code for single storages."""
