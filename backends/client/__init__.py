"""Common parts of the clients of all servers: retries, proxies, bounds and parsers of answers, tables of errors."""
