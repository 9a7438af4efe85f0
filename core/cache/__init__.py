"""The cache of a machine: a folder with the objects that loads have read, by server, URI, version and size."""
