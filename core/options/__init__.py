"""The options of the caller, and the settings that complete them."""
