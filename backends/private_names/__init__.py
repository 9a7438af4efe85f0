"""Uses private names of other libraries that have no public replacement: by what they are for.

No other file uses a private name of a library. ``tests/repo/test_private_names.py`` asserts this rule, checks each of
these names, and lists the versions that passed.
"""
