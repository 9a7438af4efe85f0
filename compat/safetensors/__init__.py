"""The names of ``safetensors``, for any URL: import ``streamer.compat.safetensors`` in place of ``safetensors``.

    >>> from streamer.compat.safetensors import safe_open
    >>> from streamer.compat.safetensors.torch import load_file

safetensors itself opens a local file whose tensors stay on the CPU: it maps the file, and no copy can be faster. The
engine reads everything else (URLs, folders, GPUs). Errors of the engine are also of the class `SafetensorError`. The
functions that write are safetensors' own.
"""

from __future__ import annotations

import safetensors
from safetensors import SafetensorError, __version__, deserialize, serialize, serialize_file

from streamer.compat.safetensors._handle import TensorMeta, safe_open, safe_open_handle
from streamer.compat.safetensors._prefetch import PrefetchLoader

_safe_open_handle = safe_open_handle  # the name in safetensors

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
