"""``oci://``: models in OCI registries, as artifacts (ModelPack, ORAS, Docker's models) and as images."""
