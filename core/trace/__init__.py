"""The trace of a load: what each thread did, and when, in a file for Perfetto."""
