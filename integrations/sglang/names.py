"""The names of SGLang that the plug-in needs; each is tested on its own, whatever the version.

The loader's base class imports models, so its names are tested with the first model (see `LOADER`). Tensors are tested
with the first model, too (see `dry_runs.py`). Each load checks that SGLang requests tensors.
"""

from __future__ import annotations

from streamer.compat.hooks import Hook
from streamer.integrations.serving.engine_hooks import without_url

__all__ = ["COMMAND", "LOADER", "NAMES"]

COMMAND = "sglang serve --model-path"

_SRT = "sglang.srt"
_CHOICES = f"{_SRT}.arg_groups.choices"
_OVERRIDES = f"{_SRT}.arg_groups.overrides"
_REGISTRY = f"{_SRT}.plugins.hook_registry"
_RUNAI = f"{_SRT}.utils.runai_utils"
_LOADERS = f"{_SRT}.model_loader.loader"
_INSTEAD = without_url(COMMAND, "streamer")

NAMES = (
    Hook(_CHOICES, "LOAD_FORMAT_CHOICES", _INSTEAD),
    Hook(_CHOICES, "add_load_format_choices", _INSTEAD, positional=1),
    Hook(_OVERRIDES, "declare_resolution", _INSTEAD, positional=2, keywords=("load_format",)),
    Hook(_OVERRIDES, "resolving_view", _INSTEAD, positional=1),
    Hook(_REGISTRY, "HookRegistry.register", _INSTEAD, positional=3),
    Hook(_REGISTRY, "HookType.AROUND", _INSTEAD),
    Hook(_RUNAI, "SUPPORTED_SCHEMES", _INSTEAD),
    Hook(_RUNAI, "is_runai_obj_uri", _INSTEAD, positional=1),
    Hook(_RUNAI, "ObjectStorageModel.get_path", _INSTEAD, positional=1),
    Hook(_RUNAI, "ObjectStorageModel.download_and_get_path", _INSTEAD, positional=1),
    Hook(f"{_SRT}.arg_groups.model_path_hook", "handle_load_format", _INSTEAD, positional=1),
    Hook(f"{_SRT}.configs.load_config", "LoadConfig._verify_load_format", _INSTEAD, positional=1),
)

LOADER = (
    Hook(_LOADERS, "DefaultModelLoader", _INSTEAD, positional=1),
    Hook(_LOADERS, "DefaultModelLoader._get_weights_iterator", _INSTEAD, positional=2),
    Hook(_LOADERS, "DefaultModelLoader._MTP_PATTERN", _INSTEAD),
    Hook(_LOADERS, "DefaultModelLoader._filter_mtp_weights", _INSTEAD, positional=3),
    Hook(f"{_SRT}.runtime_context", "get_model", _INSTEAD),
    Hook(f"{_SRT}.runtime_context", "get_server_args", _INSTEAD),
    Hook(f"{_SRT}.utils.model_file_verifier", "verify", _INSTEAD, keywords=("model_path", "checksums_source")),
)
