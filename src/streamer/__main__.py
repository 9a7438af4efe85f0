"""``python -m streamer``.

Python puts the working directory before everything else, so that a ``click.py`` in a folder that was downloaded would
be imported here: the path loses it before anything else is imported, unless this package lies there.
"""

import sys

from streamer.core.discovery.search_path import split_path

sys.path[:] = split_path()[0]

from streamer._cli import main  # noqa: E402  behind the line above on purpose

main(prog_name="python -m streamer")
