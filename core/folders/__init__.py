"""Files and folders on a disk: their paths, drafts that are renamed when they are whole, folders that are kept open."""
