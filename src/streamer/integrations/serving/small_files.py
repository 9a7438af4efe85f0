"""The small files of a model that an engine was given as a URL: all but its weights."""

from __future__ import annotations

import logging

from streamer._pull.pull import Wanted, pull

__all__ = ["pull_small_files"]

# Weights, in any format; a folder of the original format of Llama lies beside those of Hugging Face.
_WEIGHTS = (
    *("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.tensors"),
    *("*.npz", "*.distcp", "original/*"),
)


def pull_small_files(url: str, folder: str, log: logging.Logger) -> None:
    """Pull them into a folder, once per node.

    Raises:
        StreamerError: as for ``python -m streamer pull``.
        OSError: the folder cannot be written, or has no room.
    """
    report = pull(url, folder, Wanted(exclude=_WEIGHTS), progress=False, on_wait=log.info)
    log.info("Pulled %d files of %s into %s", report.files, report.uri, folder)
