"""A checkpoint as a whole: its catalog, what of it is wanted, whether it is right."""
