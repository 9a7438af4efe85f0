"""A pipeline of diffusers that is made in a second, with a component of every kind, and what it draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

MODELS = ("unet", "vae", "text_encoder")
WORDS = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2, "cat</w>": 3}


def make_pipeline(scratch: Path) -> Any:
    """Make a Stable Diffusion with random weights.

    Args:
        scratch: A folder, for the words of the tokenizer.
    """
    from diffusers import DDIMScheduler, StableDiffusionPipeline

    torch.manual_seed(0)
    (scratch / "vocab.json").write_text(json.dumps(WORDS))
    (scratch / "merges.txt").write_text("#version: 0.2\n")
    size = {"hidden_size": 32, "intermediate_size": 37, "num_attention_heads": 4, "num_hidden_layers": 2}
    text = CLIPTextConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1, vocab_size=100, **size)
    return StableDiffusionPipeline(
        unet=make_unet(),
        vae=make_vae(),
        text_encoder=CLIPTextModel(text).eval(),
        tokenizer=CLIPTokenizer.from_pretrained(scratch, model_max_length=77),
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def make_unet() -> Any:
    """Make the model that takes the noise away."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
    )


def make_vae() -> Any:
    """Make the model between pictures and what the other one sees of them."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=[32, 64],
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=4,
    )


def picture(pipeline: Any) -> Any:
    """Draw."""
    pipeline.set_progress_bar_config(disable=True)
    how = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "pt"}
    return pipeline("a cat", generator=torch.Generator().manual_seed(0), **how).images


def assert_same_weights(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Compare two models."""
    assert type(ours) is type(theirs)
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for name, tensor in ours.state_dict().items():
        assert (tensor.dtype, tensor.device) == (expected[name].dtype, expected[name].device)
        assert torch.equal(tensor, expected[name]), name


def assert_same_pipeline(ours: Any, theirs: Any) -> None:
    """Compare the models of two pipelines, and what these draw."""
    assert type(ours) is type(theirs)
    for name in MODELS:
        assert_same_weights(getattr(ours, name), getattr(theirs, name))
    assert torch.equal(picture(ours), picture(theirs))
