"""The formats of files: bytes in, values out."""
