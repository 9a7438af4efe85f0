"""``python -m streamer``.

Python puts the working directory first on the path, so a ``click.py`` in a downloaded folder would be imported in place
of the library. The working directory is removed from the path before any other import, unless this package lies there.
"""

import sys

from streamer.core.discovery.search_path import split_path

sys.path[:] = split_path()[0]

from streamer._cli import main  # noqa: E402  behind the line above on purpose

main(prog_name="python -m streamer")
