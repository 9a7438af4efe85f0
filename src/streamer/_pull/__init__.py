"""Copies a folder of any storage to a disk: resumed, verified, and complete under its final names or not there."""
