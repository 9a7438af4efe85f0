"""The files of a checkpoint: which ones they are, in which versions, and what is missing."""
