"""Tensors, bytes and blocks: formats of checkpoints, plans of reads, errors. No code here depends on one storage."""
