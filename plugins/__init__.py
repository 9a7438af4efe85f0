"""Finding the backend of a URL: built-in ones and those of other distributions, each loaded only when asked for.

Another distribution adds a storage with an entry point in the group ``streamer.backends``, named like the URL's scheme,
that points to a module (or object) with a `streamer.hookimpl` called ``streamer_open_store``.
"""

from streamer.plugins.registry import Backend, installed, open_store

__all__ = ["Backend", "installed", "open_store"]
