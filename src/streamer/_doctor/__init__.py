"""What a machine and a URI allow: probes that end in time, and a line of advice for each."""
