"""Encryption of checkpoints: keys, and the format of an encrypted safetensors file."""
