"""Whether bytes are right: what a load, a pull or a push compares with digests of a storage or a manifest."""
