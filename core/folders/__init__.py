"""Folders of a disk: paths, drafts that become files at once, folders that stay where they were opened."""
