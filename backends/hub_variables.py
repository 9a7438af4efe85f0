"""The settings that huggingface_hub reads from the environment, but blank variables count as unset here.

Guarantees: a blank ``HF_HOME`` or ``XDG_CACHE_HOME`` never turns the working directory into the user's cache, nor a
file ``token`` in it into the user's login. If no variable is blank, huggingface_hub's own values are used.
"""

from __future__ import annotations

import os

from huggingface_hub import constants, get_token

from streamer.core.secrets.environment import blank_variables, variable

USUAL_ENDPOINT = "https://huggingface.co"
OF_HOME = ("HF_HOME", "XDG_CACHE_HOME")


def hub_endpoint() -> str:
    """Return the URL of the Hub that the environment names, or of the public Hub."""
    return variable("HF_ENDPOINT") or str(constants.ENDPOINT).strip() or USUAL_ENDPOINT


def hub_cache() -> str:
    """Return the folder of the cache."""
    if not blank_variables((*OF_HOME, "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")):
        return str(constants.HF_HUB_CACHE)
    named = variable("HF_HUB_CACHE") or variable("HUGGINGFACE_HUB_CACHE")
    return _expanded(named) if named else os.path.join(_home(), "hub")


def saved_token() -> str | None:
    """Return the token of the environment, or of the saved login."""
    if not blank_variables((*OF_HOME, "HF_TOKEN_PATH")):
        return get_token()
    named = variable("HF_TOKEN") or variable("HUGGING_FACE_HUB_TOKEN")
    if named:
        return named.strip()
    try:
        with open(_expanded(variable("HF_TOKEN_PATH") or os.path.join(_home(), "token")), encoding="utf-8") as file:
            return file.read().strip() or None
    except OSError:
        return None


def _home() -> str:
    caches = variable("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return _expanded(variable("HF_HOME") or os.path.join(caches, "huggingface"))


def _expanded(path: str) -> str:
    return os.path.expandvars(os.path.expanduser(path))
