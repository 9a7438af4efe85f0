"""Libraries that load models themselves, from any URL: a module for each library."""
