"""One folder per storage: it finds where the bytes of an object are, and in which version. Imported on first use."""
