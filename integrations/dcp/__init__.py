"""Storage readers and a writer for torch.distributed.checkpoint (DCP): its checkpoints, and Hugging Face's."""

from streamer.integrations.dcp.hugging_face import HuggingFaceStorageReader, QuantizedHuggingFaceStorageReader
from streamer.integrations.dcp.reader import StorageReader
from streamer.integrations.dcp.writer import StorageWriter

__all__ = ["HuggingFaceStorageReader", "QuantizedHuggingFaceStorageReader", "StorageReader", "StorageWriter"]
