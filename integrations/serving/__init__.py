"""Shared by the plug-ins of serving engines: locating weights, configuration of loaders, and small files."""
