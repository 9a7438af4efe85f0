"""Storage readers for torch.distributed.checkpoint (DCP): its checkpoints, and those of Hugging Face, at any URL."""

from streamer.integrations.dcp.hugging_face import HuggingFaceStorageReader, QuantizedHuggingFaceStorageReader
from streamer.integrations.dcp.reader import StorageReader

__all__ = ["HuggingFaceStorageReader", "QuantizedHuggingFaceStorageReader", "StorageReader"]
