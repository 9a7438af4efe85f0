"""Sessions of botocore for s3fs that share the data which botocore loads from its own files.

Guarantees: a session behaves like the one that s3fs would make. Without sharing, each parses its own copy of botocore's
model of S3 and of all endpoints: 60 ms and 13 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from aiobotocore.session import AioSession
from botocore.loaders import create_loader

from streamer.core.secrets.options import plain

__all__ = ["new_session"]


def new_session(options: Mapping[str, Any]) -> AioSession:
    """Make a session with the arguments that s3fs gives to one."""
    session = AioSession(**plain(options))
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@lru_cache(maxsize=4)  # paths; a process has one
def _loader(data_path: str | None) -> Any:
    """Return the loader for one ``AWS_DATA_PATH``; sessions only read the data that it gives."""
    return create_loader(data_path)
