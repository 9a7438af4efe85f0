"""What the clients of all servers share: retries, proxies, bounds and parsers of answers, tables of errors."""
