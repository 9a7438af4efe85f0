"""What keeps secrets out of messages, logs and tracebacks."""
