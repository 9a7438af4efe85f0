"""The tensors of a checkpoint: where they lie, which ones or which parts are read, and where to."""
