"""The names of ``safetensors``, for any URL: its users replace ``safetensors`` by ``streamer.compat.safetensors``.

    >>> from streamer.compat.safetensors import safe_open
    >>> from streamer.compat.safetensors.torch import load_file

A local file that is to stay on the CPU is opened by safetensors itself, which maps it and reads nothing: no copy can be
faster. Everything else (URLs, folders, GPUs) is read by the engine. What the engine raises is a `SafetensorError`, too.
What writes is safetensors' own.
"""

from __future__ import annotations

import safetensors
from safetensors import SafetensorError, __version__, deserialize, serialize, serialize_file

from streamer.compat.safetensors._handle import TensorMeta, safe_open, safe_open_handle
from streamer.compat.safetensors._prefetch import PrefetchLoader

_safe_open_handle = safe_open_handle  # safetensors' name for it

if hasattr(safetensors, "TensorSpec"):  # since 0.8
    from safetensors import TensorSpec

__all__ = [
    "PrefetchLoader",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "__version__",
    "deserialize",
    "safe_open",
    "serialize",
    "serialize_file",
]
