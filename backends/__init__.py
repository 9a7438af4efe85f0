"""One folder per storage. A backend finds the place and the version of an object; it is imported on first use."""
