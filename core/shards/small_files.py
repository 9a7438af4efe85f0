"""The small files beside weights: which ones a folder holds, and their contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from streamer.core.engine.byte_reads import read_ranges
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings
from streamer.core.quoting import printable, size_text
from streamer.core.shards.shards import sized, source_object
from streamer.core.store.names import path_in
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import ObjectInfo, Store

# File names to look up if listing is forbidden.
OF_TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "preprocessor_config.json"),
    *("bpe.codes", "source.spm", "target.spm"),
)
USUAL_FILES = (
    *("config.json", "generation_config.json", "chat_template.jinja", "chat_template.json", "processor_config.json"),
    *("video_preprocessor_config.json", *OF_TOKENIZERS),
)
MOST_BYTES = 1 << 30  # of all files together: the tokenizer of a large vocabulary has 40 MB

_log = OwnLogger()


def folder_files(store: Store, usual: Sequence[str]) -> dict[str, ObjectInfo]:
    """Return the files directly in the store's root, by name; if listing is forbidden, those of `usual` that exist."""
    try:
        infos = store.find(store.root.rstrip("/") or "/")
    except AccessDeniedError:
        infos = named_files(store, usual)
        if not infos:
            raise
    return {info.path.rpartition("/")[2]: info for info in infos}


def named_files(store: Store, names: Sequence[str]) -> list[ObjectInfo]:
    """Look up files directly in the store's root; leave out files that do not exist or are forbidden."""
    root = store.root.rstrip("/")

    def info_of(name: str) -> ObjectInfo | None:
        with suppress(AccessDeniedError, ObjectNotFoundError):
            return store.info(path_in(root, name))
        return None

    return [info for info in in_parallel(info_of, names, role="info") if info is not None]


def without_large(infos: Mapping[str, ObjectInfo], most_bytes: int) -> dict[str, ObjectInfo]:
    """Return the files without those larger than `most_bytes`; log a warning for each of these."""
    for info in infos.values():
        if (info.size_bytes or 0) > most_bytes:
            _log.warning("%s: not pulled, as it is no small file", printable(info.uri))
    return {name: info for name, info in infos.items() if (info.size_bytes or 0) <= most_bytes}


def read_files(store: Store, infos: Sequence[ObjectInfo], settings: Settings) -> list[bytes]:
    """Read whole files, in parallel."""
    objects = in_parallel(lambda info: source_object(store, info), sized(store, infos), role="source")
    total_bytes = sum(each.size_bytes for each in objects)
    if total_bytes > MOST_BYTES:
        largest = max(objects, key=lambda each: each.size_bytes)
        raise StorageError(
            f"this file has {size_text(largest.size_bytes)} of the {size_text(total_bytes)} beside the shards",
            uri=largest.uri,
            hint=f"Move files that the model does not need to another folder: {size_text(MOST_BYTES)} is the limit",
        )
    contents, _ = read_ranges(
        objects, [(i, 0, each.size_bytes) for i, each in enumerate(objects)], settings, what="files"
    )
    return [bytes(content) for content in contents]
