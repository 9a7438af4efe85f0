"""What one process found while it opened a checkpoint: answers of its stores, and the small ranges that it read.

One rank of a group notes its findings, and the other ranks recall them, so that they ask the storage for nothing that
is known already. Findings are values of JSON and bytes: no source, credential or signed URL is among them. What is not
among them is asked for as usual.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

Range: TypeAlias = tuple[str, str, str, int, int]  # what it holds; server and identity; first byte, end of the range
LENGTH_BYTES = 8
FASTEST = 1  # of zlib's levels: a header shrinks to a tenth, at 100 MB/s


class Findings:
    """See the module's docstring. Thread-safe; `end` ends notes and recalls."""

    def __init__(self, packed: bytes | None = None) -> None:
        self.is_noting = packed is None
        self._is_open = True
        self._guard = threading.Lock()
        self._answers: dict[tuple[str, ...], Any] = {}
        self._ranges: dict[tuple[str, str, str, int], bytes] = {}
        self._versions: dict[tuple[str, str], str] = {}
        if packed is not None:
            self._unpack(zlib.decompress(packed))

    def end(self) -> None:
        """Note and recall nothing any more: what is read from here on is for this process alone."""
        self._is_open = False
        self._answers, self._ranges, self._versions = {}, {}, {}

    def note(self, key: tuple[str, ...], answer: Any) -> None:
        """Note an answer, which consists of JSON types."""
        if self.is_noting and self._is_open:
            with self._guard:
                self._answers[key] = answer

    def recall(self, key: tuple[str, ...]) -> Any:
        """Return an answer, or None if it is not known."""
        return None if self.is_noting or not self._is_open else self._answers.get(key)

    def note_ranges(self, ranges: Sequence[Range], contents: Sequence[memoryview], versions: Sequence[str]) -> None:
        """Note ranges that were read."""
        if not self.is_noting or not self._is_open:
            return
        with self._guard:
            for (*key, begin, _), content, version in zip(ranges, contents, versions, strict=True):
                what, server, identity = key
                self._versions[server, identity] = version
                known = self._ranges.get((what, server, identity, begin), b"")
                self._ranges[what, server, identity, begin] = max(known, bytes(content), key=len)

    def recall_ranges(
        self, ranges: Sequence[Range], *, are_cut: bool = False
    ) -> tuple[list[memoryview], list[str]] | None:
        """Return the bytes of ranges, and for each the version of its object; None if one of them is not known."""
        if self.is_noting or not self._is_open:
            return None
        contents, versions = list[memoryview](), list[str]()
        for what, server, identity, begin, end in ranges:
            content = self._ranges.get((what, server, identity, begin))
            if content is None or (len(content) < end - begin and not are_cut):
                return None
            contents.append(memoryview(content)[: end - begin])
            versions.append(self._versions[server, identity])
        return contents, versions

    def packed(self) -> bytes:
        """Return all findings as bytes."""
        ranges = [[*key, len(content)] for key, content in self._ranges.items()]
        versions = [[*key, version] for key, version in self._versions.items()]
        answers = [[list(key), answer] for key, answer in self._answers.items()]
        text = json.dumps({"answers": answers, "ranges": ranges, "versions": versions}).encode()
        parts = [len(text).to_bytes(LENGTH_BYTES, "little"), text, *self._ranges.values()]
        return zlib.compress(b"".join(parts), FASTEST)

    def _unpack(self, data: bytes) -> None:
        at = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
        told = json.loads(data[LENGTH_BYTES:at])
        self._answers = {tuple(key): answer for key, answer in told["answers"]}
        self._versions = {(server, identity): version for server, identity, version in told["versions"]}
        for what, server, identity, begin, size in told["ranges"]:
            self._ranges[what, server, identity, begin] = data[at : at + size]
            at += size
