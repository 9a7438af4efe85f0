"""Copies a folder of any storage to a disk: resumable, verified, and with final names only when it is complete."""
