"""``docs/modules.md`` is true: its code runs, and says what the comments beside it say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pages import blocks, run_examples, text_of
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

PAGE = text_of("docs/modules.md")
EXAMPLES = blocks("docs/modules.md")


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_the_examples_run_one_after_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 64,
    }
    small["tie_word_embeddings"] = True
    original = LlamaForCausalLM(LlamaConfig(**small)).bfloat16()
    original.save_pretrained(tmp_path / "llama")
    names: dict[str, Any] = {"uri": tmp_path, "llama_uri": tmp_path / "llama"}
    run_examples("docs/modules.md", names, slice(1))
    trained = names["Model"]()
    stored = {name: tensor.clone() for name, tensor in trained.state_dict().items() if name != "head.weight"}
    save_file(stored, tmp_path / "model.safetensors")
    run_examples("docs/modules.md", names, slice(1, None))
    reported = capsys.readouterr().out
    for comment in re.findall(r"print\(.*#\s+(.*)", PAGE):
        for part in re.split(r"…|\. |, GB", comment):
            assert part.strip() in reported or part.startswith("() and")
    assert (
        reported.count("not type")
        == reported.count("not SGD")
        == reported.count("not list")
        == reported.count("is lazy")
        == 1
    )
    tokens = torch.tensor([1, 2, 3])
    for filled in ("model", "wrapped", "compiled"):
        module = getattr(names[filled], "module", getattr(names[filled], "_orig_mod", names[filled]))
        assert torch.equal(module(tokens), trained(tokens)), filled
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "llama", dtype="auto")
    with torch.no_grad():
        assert torch.equal(names["llama"](tokens[None]).logits, loaded(tokens[None]).logits)
    assert torch.equal(names["sharded"].embed.weight.full_tensor(), trained.embed.weight)
    assert torch.equal(names["half"].layers[1].bias, trained.layers[1].bias.to(torch.bfloat16))
    assert torch.equal(names["parts"]["blocks"][1].weight, trained.layers[1].weight)
    assert (names["arrays"]["scale"] == 0.125).all()


def test_the_page_shows_each_of_eight_kinds() -> None:
    table = re.findall(r"^\| (\d)\. ", PAGE, flags=re.MULTILINE)
    assert table == list("12345678")
    shown = re.findall(r"# (\d): ", "\n".join(EXAMPLES))
    assert set(shown) | {"2"} == set(table)  # the meta model is the section before
