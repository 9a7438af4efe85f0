"""The contestants: one small function for each loader, and one table that names them.

Guarantees: each function returns or yields every tensor with its bytes in memory of its own, as a user needs who keeps
the whole model. No contestant has settings other than those that its row names. Libraries are imported by `imports`
before the clock starts. The environment of a row is set before its process starts, because native libraries read it
when they are loaded.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from empty_targets import empty_targets

Named = Iterable[tuple[str, Any]]


@dataclass(frozen=True)
class Target:
    """What to load: local paths, s3:// paths with their endpoint, or any URLs with their options."""

    paths: list[str]
    endpoint: str | None = None
    ca_file: str | None = None
    options: dict[str, Any] | None = None

    def environment(self) -> dict[str, str]:
        """Return the variables that S3 clients need: dummy keys, no metadata service, the test's CA."""
        if self.endpoint is None:
            return {}
        values = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_EC2_METADATA_DISABLED": "true"}
        values |= {"AWS_ENDPOINT_URL": self.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
        values |= {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0"}
        if self.ca_file is not None:
            values |= {"AWS_CA_BUNDLE": self.ca_file}
        return values

    def storage_options(self) -> dict[str, Any]:
        """Return the same settings as options of s3fs, which this project also accepts."""
        if self.options is not None:
            return self.options
        if self.endpoint is None:
            return {}
        client: dict[str, Any] = {"region_name": "us-east-1"}
        if self.ca_file is not None:
            client["verify"] = self.ca_file
        return {"key": "bench", "secret": "bench", "endpoint_url": self.endpoint, "client_kwargs": client}


@dataclass(frozen=True)
class Contestant:
    """A row of the tables. `run(target)` returns the tensors; tensors that are not kept are checked on the way."""

    name: str
    run: Callable[[Target], Named]
    imports: tuple[str, ...]
    sections: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    keeps: bool = True
    huge_pages: bool = True  # whether it allocates 2 MiB or 4 KiB at a time, as its page faults show
    listed_as: str | None = None  # its key in `CONTESTANTS`, if it differs from the name

    def import_all(self) -> None:
        """Import its modules, so that no import is measured; ``module:attribute`` for modules that load lazily."""
        for name in self.imports:
            module, _, attribute = name.partition(":")
            imported = importlib.import_module(module)
            if attribute:
                getattr(imported, attribute)


def streamer_load(target: Target) -> Named:
    import streamer

    loaded = streamer.load(target.paths, device="cpu", progress=False, storage_options=target.storage_options() or None)
    return loaded.items()


def streamer_stream(target: Target) -> Named:
    import streamer

    with streamer.stream(
        target.paths,
        device="cpu",
        progress=False,
        storage_options=target.storage_options() or None,
        options=streamer.Options(memory_limit_bytes=STREAM_LIMIT_BYTES),
    ) as stream:
        yield from stream


def streamer_load_into(target: Target) -> Named:
    """Load into newly created tensors, such as the parameters of a new model."""
    import streamer

    tensors = empty_targets(target.paths, "cpu")
    streamer.load_into(target.paths, tensors, progress=False)
    return tensors.items()


def safetensors_copy(target: Target) -> Named:
    """Map the file and copy each tensor, as `load_model` and transformers do with a newly created model."""
    from safetensors.torch import load_file

    tensors = empty_targets(target.paths, "cpu")
    for path in target.paths:
        for name, tensor in load_file(path).items():
            tensors[name].copy_(tensor)
    return tensors.items()


def safetensors_clone(target: Target) -> Named:
    """Clone each tensor: `get_tensor` of the mmap backend is a lazy view that reads nothing."""
    from safetensors import safe_open

    tensors = {}
    for path in target.paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
                tensors[name] = file.get_tensor(name).clone()
    return tensors.items()


def safetensors_pread(target: Target) -> Named:
    """Call `load_file(backend="pread")`, which reads into memory of its own."""
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    for path in target.paths:
        tensors |= load_file(path, backend="pread")
    return tensors.items()


def runai(target: Target) -> Named:
    """Keep all tensors; in version 0.17, the caller owns them (`owned=True` is its default)."""
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(target.paths, device="cpu")
        return dict(streamer.get_tensors()).items()


def s3fs_cat(target: Target) -> Named:
    """Fetch 16 MiB ranges, 4 at a time, with `cat_ranges`, into one buffer per shard; the tensors are views of it.

    More ranges at a time, other sizes, and `cat_file` of whole shards were not faster, and needed more CPU time.
    """
    import s3fs
    from s3fs_shards import read_shard

    files = s3fs.S3FileSystem(**target.storage_options(), default_cache_type="none", skip_instance_cache=True)
    tensors: dict[str, Any] = {}
    for path in target.paths:
        tensors |= read_shard(files, path)
    return tensors.items()


def tensorizer(target: Target) -> Named:
    """Load CoreWeave's format of the same tensors, which `bench_experiments.py` writes beside the shards."""
    from tensorizer import TensorDeserializer

    readers = int(os.environ.get("BENCH_READERS", "0")) or None
    return dict(TensorDeserializer(tensorized(target.paths), device="cpu", num_readers=readers).items()).items()


def tensorized(paths: list[str]) -> str:
    """Return the path of the tensorizer file beside the shards."""
    return f"{os.path.dirname(paths[0])}/model.tensors"


def fastsafetensors(target: Target) -> Named:
    """Load without GPUDirect, which needs a GPU. The tensors are views of the library's buffers, which are kept."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    threads = int(os.environ.get("BENCH_READERS", "0")) or 16  # the default of fastsafetensors
    loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True, max_threads=threads)
    loader.add_filenames({0: target.paths})
    buffers = loader.copy_files_to_device()
    _KEPT.append((loader, buffers))
    return {name: buffers.get_tensor(name) for name in buffers.key_to_rank_lidx}.items()


_KEPT: list[Any] = []


FILE, S3 = ("file-warm", "file-cold"), ("http", "https")
STREAM_LIMIT_BYTES = 256 << 20  # small beside the checkpoint, so that the goal on its peak means something
STREAMER = ("torch", "s3fs", "streamer:load", "streamer:stream")
RUNAI_STRATEGIES = ("io_uring_direct", "io_uring_buffered", "libaio_direct", "sync_buffered")
RUNAI_CONCURRENCY = (2, 4, 8, 16, 32)


def _runai_file(strategy: str | None) -> Contestant:
    environment = {} if strategy is None else {"RUNAI_STREAMER_FS_STRATEGY": strategy}
    return Contestant(f"runai {strategy or 'default'}", runai, ("runai_model_streamer",), FILE, environment)


def _runai_s3(concurrency: int) -> Contestant:
    names = ("RUNAI_STREAMER_CONCURRENCY", "RUNAI_STREAMER_OBJ_CONCURRENCY")
    environment = dict.fromkeys(names, str(concurrency))
    modules = ("runai_model_streamer", "runai_model_streamer_s3")
    return Contestant(f"runai s3 concurrency {concurrency}", runai, modules, S3, environment, huge_pages=False)


CONTESTANTS = {
    each.name: each
    for each in (
        Contestant("streamer load", streamer_load, STREAMER, FILE + S3),
        Contestant("streamer load, no ring", streamer_load, STREAMER, ("file-cold",), {"STREAMER_IO_URING": "0"}),
        Contestant("streamer stream (discard)", streamer_stream, STREAMER, FILE + S3, keeps=False),
        Contestant("streamer load_into", streamer_load_into, (*STREAMER, "streamer:load_into", "safetensors"), FILE),
        Contestant("safetensors copy_", safetensors_copy, ("torch", "safetensors.torch"), FILE, huge_pages=False),
        Contestant("safetensors clone", safetensors_clone, ("torch", "safetensors.torch"), FILE, huge_pages=False),
        Contestant("safetensors pread", safetensors_pread, ("torch", "safetensors.torch"), FILE, huge_pages=False),
        _runai_file(None),
        *(_runai_file(strategy) for strategy in RUNAI_STRATEGIES),
        *(_runai_s3(concurrency) for concurrency in RUNAI_CONCURRENCY),
        Contestant("tensorizer", tensorizer, ("tensorizer",), ("experiment",), huge_pages=False),
        Contestant("fastsafetensors", fastsafetensors, ("fastsafetensors",), ("experiment",), huge_pages=False),
        Contestant("s3fs cat_ranges", s3fs_cat, ("torch", "s3fs", "s3fs_shards"), S3, huge_pages=False),
    )
}


def environment_for(contestant: Contestant, target: Target) -> dict[str, str]:
    """Build the environment of one run: that of this process without settings of loaders, plus those of the row."""
    # The last variable would keep Python from caching compiled modules of an editable install.
    tuning = ("RUNAI_", "STREAMER_", "AWS_", "PYTHONDONTWRITEBYTECODE")
    base = {name: value for name, value in os.environ.items() if not name.startswith(tuning)}
    return base | target.environment() | contestant.environment
