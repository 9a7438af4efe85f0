"""``python -m streamer``."""

from streamer._cli import main

main(prog_name="python -m streamer")
