"""Completes the arguments of `gcsfs.GCSFileSystem` from the environment if the user gives none.

Guarantees: what the user gives (arguments, fsspec configuration) is never overridden or changed in place. Refuses
unverified TLS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcsfs.core import GCSFileSystem
from yarl import URL

from streamer.backends.client.option_types import TEXT, Kind, Kinds, check_types
from streamer.backends.fsspec.options import configured_options, names_of_arguments
from streamer.backends.gcs.credentials import EMULATOR, GcsFileSystem
from streamer.backends.gcs.session_options import check_session
from streamer.backends.option_names import check_option_names
from streamer.core.errors import OptionError
from streamer.core.secrets.environment import blank_variables
from streamer.core.secrets.options import SecretOptions

__all__ = ["filled_options"]

_KINDS: Kinds = {
    **dict.fromkeys(("access", "endpoint_url", "key_file", "project"), TEXT),
    "requester_pays": Kind("True, or the name of a project", (bool, str)),
    "session_kwargs": {"proxy": Kind("a URL", (str, URL))},
}


# The last one is taken from ``**kwargs`` by the class for buckets with folders.
_NAMES = names_of_arguments(GCSFileSystem, GcsFileSystem) | {"memmove_max_workers"}


def filled_options(storage_options: Mapping[str, Any], environment: Mapping[str, str]) -> SecretOptions:
    """Complete the arguments of `GCSFileSystem` from fsspec's configuration and the environment.

    Variables of the environment become arguments, as fsspec would otherwise return the instance of an environment that
    has changed since. For an emulator no credentials are looked for, as in Google's own library.

    Raises:
        OptionError: an unknown option, a value of the wrong type, an ``asynchronous`` instance, a key file that does
            not exist, or TLS that is not verified.
    """
    check_option_names("gs://", storage_options, _NAMES)
    options = configured_options(GcsFileSystem, storage_options)
    check_types(options, _KINDS)
    if options.get("project", "") is None:
        del options["project"]  # gcsfs would warn
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if not options.get("endpoint_url") and emulator not in ("", "default"):
        options["endpoint_url"] = emulator if "://" in emulator else f"http://{emulator}"
        options["token"] = EMULATOR if options.get("token") is None else options["token"]
    if not options.get("endpoint_url") and blank_variables(["GOOGLE_CLOUD_UNIVERSE_DOMAIN"]):
        options["endpoint_url"] = "https://storage.googleapis.com"  # gcsfs takes a blank one at its word
    if options.get("token") is None and environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        options["key_file"] = environment["GOOGLE_APPLICATION_CREDENTIALS"]
    if _looks_like_a_path(options.get("token")):
        try:
            open(options["token"], "rb").close()
        except OSError as error:
            raise OptionError(f"The option token names a file that cannot be read ({type(error).__name__})") from None
    check_session(options.get("session_kwargs") or {})
    return options


def _looks_like_a_path(token: Any) -> bool:
    """Say whether a token names a file: a mistyped name would be sent to the server as a token."""
    return isinstance(token, str) and (token.endswith(".json") or token.startswith(("/", "./", "../", "~")))
