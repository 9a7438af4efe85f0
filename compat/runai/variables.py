"""Converts Run:ai's environment variables and credentials into storage options and `Options` of this package.

Variables without a meaning here are accepted, and logged once at level DEBUG; see ``docs/integrations/runai.md``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streamer.core.log import OwnLogger
from streamer.core.options.options import Options
from streamer.core.options.switches_and_sizes import ON, parsed_bytes
from streamer.core.secrets.environment import variable
from streamer.core.store.names import scheme_of

__all__ = ["options_from_environment", "storage_options_for"]

PREFIX = "RUNAI_STREAMER_"
HONOURED = frozenset(
    PREFIX + name
    for name in (
        "CHUNK_BYTESIZE",
        "CONCURRENCY",
        "GCS_CREDENTIAL_FILE",
        "GCS_USE_ANONYMOUS_CREDENTIALS",
        "S3_UNSIGNED",
        "S3_USE_VIRTUAL_ADDRESSING",
    )
)
_BLOCK_BYTES = (64 << 10, 1 << 30)  # the bounds of Options
_THREADS = (1, 256)

_log = OwnLogger()
_logged: set[str] = set()


def options_from_environment() -> Options:
    """Return the options that Run:ai's variables set; ``STREAMER_*`` takes precedence, and values are clamped."""
    _log_ignored()
    return Options(
        block_bytes=_bounded("CHUNK_BYTESIZE", "STREAMER_BLOCK_BYTES", _BLOCK_BYTES),
        file_threads=_bounded("CONCURRENCY", "STREAMER_FILE_THREADS", _THREADS),
    )


def storage_options_for(path: str, credentials: Mapping[str, str]) -> dict[str, Any]:
    """Return the options for the storage of one path.

    Args:
        path: Path or URL of a file or folder.
        credentials: As for `runai_file_streamer_set_credentials`; only S3 uses them.
    """
    scheme = scheme_of(path)
    if scheme in ("s3", "s3a"):
        return _for_s3(credentials)
    return _for_gcs() if scheme in ("gs", "gcs") else {}


def _for_s3(credentials: Mapping[str, str]) -> dict[str, Any]:
    names = {
        "access_key_id": "key",
        "secret_access_key": "secret",
        "session_token": "token",
        "endpoint": "endpoint_url",
    }
    options: dict[str, Any] = {ours: credentials[theirs] for theirs, ours in names.items() if credentials.get(theirs)}
    if credentials.get("region"):
        options["client_kwargs"] = {"region_name": credentials["region"]}
    if _is_on("S3_UNSIGNED"):
        options["anon"] = True
    addressing = variable(f"{PREFIX}S3_USE_VIRTUAL_ADDRESSING")
    if addressing is not None:
        style = "virtual" if addressing.lower() in ON else "path"
        options["config_kwargs"] = {"s3": {"addressing_style": style}}
    return options


def _for_gcs() -> dict[str, Any]:
    file = variable(f"{PREFIX}GCS_CREDENTIAL_FILE")
    if _is_on("GCS_USE_ANONYMOUS_CREDENTIALS"):
        return {"token": "anon"}
    return {"token": file} if file else {}


def _is_on(name: str) -> bool:
    return (variable(PREFIX + name) or "").lower() in ON


def _bounded(name: str, own_name: str, bounds: tuple[int, int]) -> int | None:
    text = variable(PREFIX + name)
    if text is None or variable(own_name) is not None:
        return None
    value = parsed_bytes(text)
    if value is None:
        return None
    return min(max(value, bounds[0]), bounds[1]) if value > 0 else None


def _log_ignored() -> None:
    for name in sorted(name for name in os.environ if name.startswith(PREFIX)):
        if name not in HONOURED and name not in _logged:
            _logged.add(name)
            _log.debug("%s has no meaning for the engine of streamer", name)
