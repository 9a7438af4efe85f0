"""What is installed and may be imported, and what merely lies around."""
