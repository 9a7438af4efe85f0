"""Lets libraries that load models by themselves load them from any URL: a module for each library."""
