"""What all commands have in common: how they write their output, and how they end."""
