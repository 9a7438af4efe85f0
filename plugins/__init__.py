"""Finding the backend of a URL: built-in ones and those of other distributions, each loaded only when asked for.

Another distribution adds a storage with an entry point in the group ``streamer.backends``, named like the URL's scheme,
that points to a module (or object) with a `streamer.hookimpl` called ``streamer_open_store``. It shows that its storage
behaves by running the suite in `streamer.plugins.contract`.
"""

from streamer.plugins.inventory import Backend, Examined, examine, installed
from streamer.plugins.registry import open_store

__all__ = ["Backend", "Examined", "examine", "installed", "open_store"]
