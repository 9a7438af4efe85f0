"""The names that `streamer.transformers` replaces in transformers, and the dry run that tests whether this works.

A copy of transformers inside another package has its own hooks.
"""

from __future__ import annotations

from contextlib import closing
from functools import cache, partial
from typing import Any

import torch

from streamer.compat.hooks import Hook, imported, is_equal, package_with
from streamer.integrations.model_folder import ModelFolder
from streamer.integrations.routed_call import RoutedName, routed
from streamer.integrations.small_checkpoint import small_checkpoint, without_progress_bars

__all__ = ["LIBRARY", "late_readers", "package_of", "readers", "weights_hook"]

LIBRARY = "transformers"

package_of = partial(package_with, LIBRARY)


@cache
def readers(package: str) -> tuple[RoutedName, ...]:
    """Return the names by which a package of transformers opens files of weights."""
    modules = ("modeling_utils", "integrations.accelerate", "modeling_layers", "quantizers.quantizer_torchao")
    return tuple(RoutedName(f"{package}.{module}", origin=("safetensors", "safe_open")) for module in modules)


def late_readers(package: str, model: Any) -> list[RoutedName]:
    """Return the functions of transformers that read more weights after a model was loaded.

    ``generate(use_mtp=True)`` of transformers 5.24 opens the checkpoint that ``config.name_or_path`` names, and reads
    the layers that predict several tokens.

    Args:
        package: The package of transformers.
        model: The loaded model.
    """
    text_config: Any = getattr(getattr(model, "config", None), "get_text_config", dict)()
    has_late_layers = isinstance(model, torch.nn.Module) and getattr(text_config, "num_mtp_layers", None)
    return [each for each in readers(package) if each.module.endswith(".modeling_layers")] if has_late_layers else []


@cache
def weights_hook(package: str) -> Hook:
    """Return the hook for the reader that ``from_pretrained`` uses."""
    return Hook(
        f"{package}.modeling_utils",
        "safe_open",
        otherwise="weights are written to a private folder on a disk before they are loaded, which is slower",
        dry_run=partial(_loads_a_small_model, package),
    )


def _loads_a_small_model(package: str) -> bool:
    """Whether a model of two tensors is loaded equally from a URL and, by the library's own reader, from files."""
    host = imported(package)

    class SmallConfig(host.PretrainedConfig):  # type: ignore[misc, name-defined]
        model_type = "streamer_dry_run"

    class SmallModel(host.PreTrainedModel):  # type: ignore[misc, name-defined]
        config_class = SmallConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.layer = torch.nn.Linear(3, 2)
            self.post_init()

    with small_checkpoint() as (location, expected), without_progress_bars(package):
        SmallConfig().save_pretrained(location.uri)
        with (
            closing(ModelFolder(location)) as folder,
            routed(folder.path, dict.fromkeys(readers(package), folder.opened)),
        ):
            ours, theirs = (
                SmallModel.from_pretrained(path, dtype=torch.float32) for path in (folder.path, location.uri)
            )
            return is_equal(ours.state_dict(), expected) and is_equal(theirs.state_dict(), expected)
