"""Make a checkpoint in Hugging Face's layout, with random weights: shards, their index and a ``config.json``.

Guarantees: the tensors are those of a small Qwen2-like model whose size is close to the requested size (mostly BF16,
one F32, and one FP8 E4M3 with its F32 scale). Their bytes depend only on the seed and the size, not on the number of
shards. Every value is finite. Memory holds one shard at a time. The index is written last, so a folder with an index is
complete. Refuses to write into a folder that holds other files.

    python examples/make_checkpoint.py FOLDER --size 1GiB --shards 4 --seed 0
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm import tqdm

__all__ = ["Summary", "make_checkpoint", "parse_size"]

INDEX_NAME = "model.safetensors.index.json"
SMALLEST_BYTES = 64 << 10  # for a smaller size, norms and biases alone would be too large
HEAD_SIZE = 16  # small, so that the narrowest model still has two heads


@dataclass(frozen=True)
class Summary:
    """The content of the folder: the number of tensors, their bytes in all, and the number of files."""

    folder: Path
    shards: int
    tensors: int
    tensor_bytes: int


@dataclass(frozen=True)
class _Shape:
    """The dimensions of the model."""

    hidden: int
    layers: int
    vocabulary: int

    @property
    def intermediate(self) -> int:
        return self.hidden * 11 // 4  # a factor of 2.75, as in Llama

    @property
    def key_value(self) -> int:
        return max(HEAD_SIZE, self.hidden // 4)  # four query heads share one


@dataclass(frozen=True)
class _Tensor:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def make_checkpoint(
    folder: str | Path,
    total_bytes: int = 1 << 30,
    shards: int = 4,
    seed: int = 0,
    *,
    reuse: bool = False,
    progress: bool = False,
) -> Summary:
    """Write the checkpoint.

    Args:
        folder: Created if it does not exist. Files that an earlier call wrote are replaced.
        total_bytes: About how many bytes of tensors, at least 64 KiB.
        shards: Number of files.
        seed: The seed of the random bytes.
        reuse: Write nothing if the folder already holds the checkpoint of the same arguments.
        progress: Show a bar on the standard error.

    Raises:
        ValueError: the size is too small, or there would be more shards than tensors.
        FileExistsError: the folder holds files that this script did not write.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_checkpoint(folder, total_bytes=1 << 20, shards=2).tensors
        137
    """
    folder = Path(folder)
    tensors = list(_tensors(_shape_for(total_bytes)))
    if not 1 <= shards <= len(tensors):
        raise ValueError(f"shards must be between 1 and the {len(tensors)} tensors, not {shards}")
    summary = Summary(folder, shards, len(tensors), sum(tensor.size_bytes for tensor in tensors))
    recipe = {"total_bytes": total_bytes, "shards": shards, "seed": seed}
    if reuse and _is_complete(folder, recipe):
        return summary
    _clear(folder)
    _write_json(folder / "config.json", _config(_shape_for(total_bytes)) | {"made_by_make_checkpoint": recipe})
    with tqdm(total=summary.tensor_bytes, unit="B", unit_scale=True, desc="writing", disable=not progress) as bar:
        weight_map = _write_shards(folder, tensors, shards, seed, bar)
    metadata = {"total_size": summary.tensor_bytes}
    _write_json(folder / INDEX_NAME, {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))})
    return summary


def parse_size(text: str) -> int:
    """Read ``1GiB``, ``24MiB``, ``500MB`` or a plain number of bytes.

    >>> parse_size("1.5KiB")
    1536
    """
    match = re.fullmatch(r"([\d.]+)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"not a size such as 1GiB: {text!r}")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))


# --- the model ------------------------------------------------------------------------------------------------------


def _shape_for(total_bytes: int) -> _Shape:
    """Choose the widest model with at least eight layers; its vocabulary gets the remaining bytes."""
    if total_bytes < SMALLEST_BYTES:
        raise ValueError(f"a checkpoint has at least {SMALLEST_BYTES} bytes, not {total_bytes}")
    hidden = 2 * HEAD_SIZE
    while _bytes_of(_Shape(2 * hidden, 8, 16 * hidden)) <= total_bytes:
        hidden *= 2
    smallest_vocabulary = 4 * hidden
    fixed = _bytes_of(_Shape(hidden, 0, smallest_vocabulary))
    layer = _bytes_of(_Shape(hidden, 2, 0)) - _bytes_of(_Shape(hidden, 1, 0))
    layers = max(1, (total_bytes - fixed) // layer)
    rest = total_bytes - _bytes_of(_Shape(hidden, layers, smallest_vocabulary))
    row = 2 * 2 * hidden  # BF16, in the embedding and in the head
    return _Shape(hidden, layers, smallest_vocabulary + max(0, rest // row))


def _bytes_of(shape: _Shape) -> int:
    return sum(tensor.size_bytes for tensor in _tensors(shape))


def _tensors(shape: _Shape) -> Iterator[_Tensor]:
    """Yield every tensor in the order of the model."""
    half = torch.bfloat16
    yield _Tensor("model.embed_tokens.weight", half, (shape.vocabulary, shape.hidden))
    yield _Tensor("model.rotary_emb.inv_freq", torch.float32, (HEAD_SIZE // 2,))
    for layer in range(shape.layers):
        yield from _layer_tensors(f"model.layers.{layer}.", shape, quantized=layer == shape.layers - 1)
    yield _Tensor("model.norm.weight", half, (shape.hidden,))
    yield _Tensor("lm_head.weight", half, (shape.vocabulary, shape.hidden))


def _layer_tensors(prefix: str, shape: _Shape, *, quantized: bool) -> Iterator[_Tensor]:
    half, hidden, intermediate = torch.bfloat16, shape.hidden, shape.intermediate
    yield _Tensor(f"{prefix}input_layernorm.weight", half, (hidden,))
    for name, rows in (("q", hidden), ("k", shape.key_value), ("v", shape.key_value)):
        yield _Tensor(f"{prefix}self_attn.{name}_proj.weight", half, (rows, hidden))
        yield _Tensor(f"{prefix}self_attn.{name}_proj.bias", half, (rows,))
    yield _Tensor(f"{prefix}self_attn.o_proj.weight", half, (hidden, hidden))
    yield _Tensor(f"{prefix}post_attention_layernorm.weight", half, (hidden,))
    yield _Tensor(f"{prefix}mlp.gate_proj.weight", half, (intermediate, hidden))
    yield _Tensor(f"{prefix}mlp.up_proj.weight", half, (intermediate, hidden))
    down_dtype = torch.float8_e4m3fn if quantized else half
    yield _Tensor(f"{prefix}mlp.down_proj.weight", down_dtype, (hidden, intermediate))
    if quantized:
        yield _Tensor(f"{prefix}mlp.down_proj.weight_scale", torch.float32, ())


def _config(shape: _Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.hidden // HEAD_SIZE,
        "num_key_value_heads": shape.key_value // HEAD_SIZE,
        "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


# --- the folder -----------------------------------------------------------------------------------------------------


def _is_complete(folder: Path, recipe: dict[str, int]) -> bool:
    """Return whether the folder holds the checkpoint of this recipe; opening a shard checks its size."""
    try:
        if _read_json(folder / "config.json").get("made_by_make_checkpoint") != recipe:
            return False
        weight_map = _read_json(folder / INDEX_NAME)["weight_map"]
        for name in set(weight_map.values()):
            with safe_open(folder / name, "pt") as shard:
                if set(shard.keys()) != {tensor for tensor, file in weight_map.items() if file == name}:
                    return False
    except (OSError, ValueError, KeyError, SafetensorError):
        return False
    return True


def _clear(folder: Path) -> None:
    """Remove the files of an earlier checkpoint, or create the folder; refuse if it holds other files."""
    folder.mkdir(parents=True, exist_ok=True)
    found = list(folder.iterdir())
    is_ours = (folder / "config.json").is_file() and "made_by_make_checkpoint" in _read_json(folder / "config.json")
    if found and not is_ours:
        raise FileExistsError(f"{folder} holds other files; name a new or an empty folder")
    for pattern in (INDEX_NAME, "model-*-of-*.safetensors", "config.json"):  # the index first: it means complete
        for file in folder.glob(pattern):
            file.unlink()


def _write_shards(folder: Path, tensors: list[_Tensor], shards: int, seed: int, bar: tqdm[Any]) -> dict[str, str]:
    weight_map: dict[str, str] = {}
    index = 0
    for number, group in enumerate(_split(tensors, shards), start=1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        data: dict[str, torch.Tensor] = {}
        for tensor in group:
            data[tensor.name] = _random_tensor(tensor, seed, index)
            index += 1
        save_file(data, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(data, name)
        bar.update(sum(tensor.size_bytes for tensor in group))
    return weight_map


def _split(tensors: list[_Tensor], shards: int) -> Iterator[list[_Tensor]]:
    """Cut the list into runs of about equal bytes, with at least one tensor each."""
    ends = np.cumsum([tensor.size_bytes for tensor in tensors])
    begin = 0
    for shard in range(1, shards + 1):
        wanted = int(np.searchsorted(ends, ends[-1] * shard / shards)) + 1
        end = min(max(wanted, begin + 1), len(tensors) - (shards - shard))
        yield tensors[begin:end]
        begin = end


def _random_tensor(tensor: _Tensor, seed: int, index: int) -> torch.Tensor:
    random = np.random.Generator(np.random.SFC64([seed, index]))  # numpy's fastest generator: 2.6 GB/s
    words = random.integers(0, (1 << 64) - 1, -(-tensor.size_bytes // 8), dtype=np.uint64, endpoint=True)
    words &= _finite_mask(tensor.dtype)
    data = torch.from_numpy(words.view(np.uint8)[: tensor.size_bytes])
    return data.view(tensor.dtype).reshape(tensor.shape)


def _finite_mask(dtype: torch.dtype) -> np.uint64:
    """Return a mask that clears the highest exponent bit of every value in a word, so that each value is finite."""
    value = 0xBF << 8 * (dtype.itemsize - 1) | ((1 << 8 * (dtype.itemsize - 1)) - 1)
    return np.uint64(int.from_bytes(value.to_bytes(dtype.itemsize, "little") * (8 // dtype.itemsize), "little"))


def _read_json(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text())
    return content if isinstance(content, dict) else {}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a sharded checkpoint with random weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=parse_size, default=1 << 30, help="bytes of tensors (default: 1GiB)")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    summary = make_checkpoint(arguments.folder, arguments.size, arguments.shards, arguments.seed, progress=True)
    print(json.dumps(asdict(summary), default=str))


if __name__ == "__main__":
    main()
