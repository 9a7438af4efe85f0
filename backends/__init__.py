"""One module per storage: where the bytes of an object live, and which version of it. None is imported before use."""
