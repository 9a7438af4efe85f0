"""Paths and credentials of object storages, under Run:ai's names."""
