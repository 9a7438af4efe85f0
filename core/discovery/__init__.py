"""Which distributions are installed and may be imported, and which only lie in a working directory."""
