"""Names that other libraries keep for themselves, and that nothing public replaces: one file per library.

No other file uses a private name of a library. ``tests/unit/test_private_names.py`` asserts it, checks each of these
names, and says which versions passed.
"""
