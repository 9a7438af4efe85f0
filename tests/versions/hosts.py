"""Runs in an environment of its own: loads a tiny model of each host from a disk and over HTTP, and compares both.

Reads JSON from standard input, ``{"room": [folder, url]}``: a folder to fill, and its URL at a web server. Writes JSON
as ``child.py`` does, with the warnings that streamer logged. A model that came from a URL must equal the one that the
unmodified host loads from the folder.
"""

from __future__ import annotations

import json
import logging
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

HOST_LIBRARIES = ("transformers", "accelerate", "diffusers", "safetensors", "huggingface_hub")

Load = Callable[[str], dict[str, Any]]


def main() -> None:
    folder, url = json.load(sys.stdin)["room"]
    lines = _Lines()
    logging.getLogger("streamer").addHandler(lines)
    answer: dict[str, Any] = {"python": platform.python_version(), "places": {}}
    answer["versions"] = {library: version(library) for library in ("torch", "numpy", "fsspec", *HOST_LIBRARIES)}
    with tempfile.TemporaryDirectory(dir=folder) as made:
        Path(made).chmod(0o755)  # for the web server
        for name, prepare in HOSTS.items():
            Path(made, name).mkdir()
            for place, uri in {"file": Path(made).as_uri(), "http": f"{url}/{Path(made).name}"}.items():
                answer["places"][f"{name} {place}"] = _fault(prepare, Path(made, name), f"{uri}/{name}")
    answer["lines"] = lines.texts
    json.dump(answer, sys.stdout)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _fault(prepare: Callable[[Path], tuple[Load, Load]], folder: Path, uri: str) -> str | None:
    import torch  # here, so that a failed import is the fault of each place

    try:
        theirs, ours = prepare(folder)
        expected, got = theirs(str(folder)), ours(uri)
        if got.keys() != expected.keys():
            return f"other names than the folder's: {sorted(got.keys() ^ expected.keys())[:3]}"
        wrong = [name for name, tensor in expected.items() if not torch.equal(tensor, got[name])]
    except Exception:
        return traceback.format_exc()
    return f"other tensors than the folder's: {wrong[:3]}" if wrong else None


def of_transformers(folder: Path) -> tuple[Load, Load]:
    from transformers import LlamaForCausalLM

    import streamer

    _save_llama(folder)
    ours = streamer.transformers.from_pretrained
    return (
        lambda path: LlamaForCausalLM.from_pretrained(path).state_dict(),
        lambda uri: ours(LlamaForCausalLM, uri).state_dict(),
    )


def of_accelerate(folder: Path) -> tuple[Load, Load]:
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch
    from transformers import AutoConfig, LlamaForCausalLM

    import streamer

    _save_llama(folder)

    def loaded(load: Callable[..., Any], uri: str) -> dict[str, Any]:
        with init_empty_weights(include_buffers=False):
            model = LlamaForCausalLM(AutoConfig.from_pretrained(folder))
        return dict(load(model, uri, device_map={"": "cpu"}).state_dict())

    return (
        lambda path: loaded(load_checkpoint_and_dispatch, path),
        lambda uri: loaded(streamer.accelerate.load_checkpoint_and_dispatch, uri),
    )


def of_diffusers(folder: Path) -> tuple[Load, Load]:
    from diffusers import AutoencoderKL

    import streamer

    if not any(folder.iterdir()):
        AutoencoderKL(block_out_channels=[32], norm_num_groups=8).save_pretrained(folder, max_shard_size="70KB")
    ours = streamer.diffusers.from_pretrained
    return (
        lambda path: AutoencoderKL.from_pretrained(path).state_dict(),
        lambda uri: ours(AutoencoderKL, uri).state_dict(),
    )


def of_safetensors(folder: Path) -> tuple[Load, Load]:
    import safetensors.torch
    import torch

    import streamer

    safetensors.torch.save_file({"a": torch.arange(9.0), "b": torch.ones(2, 3)}, folder / "model.safetensors")

    def read(open_file: Callable[..., Any], uri: str) -> dict[str, Any]:
        with open_file(f"{uri}/model.safetensors", framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a handle is no mapping)

    return (lambda path: read(safetensors.safe_open, path), lambda uri: read(streamer.safe_open, uri))


HOSTS = {
    "transformers": of_transformers,
    "accelerate": of_accelerate,
    "diffusers": of_diffusers,
    "safetensors": of_safetensors,
}


def _save_llama(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    if any(folder.iterdir()):
        return
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 64}
    config = LlamaConfig(num_hidden_layers=2, tie_word_embeddings=False, **size)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="20KB")


if __name__ == "__main__":
    main()
