"""Distinguishes installed distributions, which may be imported, from files that only lie in a working directory."""
