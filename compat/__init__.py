"""Names of other libraries, so that programs need no change: a module for each library."""
