"""Tensors, bytes and blocks: formats of checkpoints, plans of reads, errors. No code here depends on one storage."""

__all__ = ["VERSION"]

VERSION = "0.1.0"  # not read from the metadata of the distribution, which images and bundles leave out
