"""What every client of a server shares: bounded answers, values that a server tells."""
