"""Shared by all commands: output and exit codes."""
