"""Real storage servers for the tests, each private to the process that starts it."""
