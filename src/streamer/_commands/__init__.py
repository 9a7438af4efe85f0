"""The commands of ``python -m streamer``; what a command does is imported when it runs."""
