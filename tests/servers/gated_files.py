"""Files of which no weight arrives before the test says so."""

from __future__ import annotations

import threading

from fsspec.implementations.memory import MemoryFileSystem

WEIGHTS_BYTES = 256 << 10  # a larger read is not one of the header


class GatedFileSystem(MemoryFileSystem):
    """Stops in the middle of the weights until the gate is opened."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store = {}
        self.pseudo_dirs = [""]
        self.is_reading, self.gate = threading.Event(), threading.Event()

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: object) -> bytes:
        if start and end and end - start > WEIGHTS_BYTES:
            self.is_reading.set()
            assert self.gate.wait(60)
        return super().cat_file(path, start, end, **options)
