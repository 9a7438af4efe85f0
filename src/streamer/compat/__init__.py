"""Other libraries' names, for programs that shall not change: a module for each library."""
