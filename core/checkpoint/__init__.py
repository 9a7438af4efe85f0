"""A checkpoint as a whole: its shards and tensors, the selection to read, and its verification."""
