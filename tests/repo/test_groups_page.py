"""``docs/groups.md`` is true: its examples run on two ranks, and give what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from group_ranks import ranks_tell, values
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.slow
PAGE = Path(__file__).resolve().parents[2] / "docs/groups.md"
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}


def test_the_examples_run_one_after_another(tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=False)).save_pretrained(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (told,) = ranks_tell(2, ("page", {"llama": str(tmp_path), "examples": examples, "page": str(PAGE)}))
    for each in values(told):
        assert each["is_filled"]
        assert each["shapes"]["model.layers.0.mlp.down_proj.weight"] == [32, 24]
        assert each["shapes"]["model.layers.0.mlp.up_proj.weight"] == [24, 32]
        assert each["shapes"]["model.norm.weight"] == [32]
