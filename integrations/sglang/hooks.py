"""The names of SGLang that the plug-in needs, and the hooks that it registers.

Each name is tested on its own, whatever the version. The loader's base class imports models, so its names are tested
with the first model (see `LOADER`), as tensors are (see `loader.py`). Each load checks that SGLang requests tensors.

SGLang accepts URLs of three schemes, by ``is_runai_obj_uri``. It pulls their small files once per node, before it
starts processes; each process finds the folder by the URL. The hooks extend this to every URL.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from sglang.srt.arg_groups.choices import LOAD_FORMAT_CHOICES, add_load_format_choices
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.utils.runai_utils import SUPPORTED_SCHEMES, ObjectStorageModel

from streamer.compat.hooks import Hook
from streamer.core.errors import StreamerError
from streamer.core.log import OwnLogger
from streamer.core.secrets.redact import redact
from streamer.integrations.serving.engine_hooks import changed, first_misfit, refusal, without_url
from streamer.integrations.serving.weights_location import adapter_url, is_url, pull_adapter, pull_small_files

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

ADAPTER = Hook(
    f"{_SRT}.lora.lora_config",
    "LoRAConfig",
    "a URL cannot name a LoRA adapter. Use: python -m streamer pull URI DIR, and DIR as lora_path",
    positional=1,
)

_RANKS = "each rank pulls a LoRA adapter, and they may read different versions if it is replaced meanwhile"
LOAD_ADAPTER = Hook(
    f"{_SRT}.managers.tokenizer_control_mixin", "TokenizerControlMixin.load_lora_adapter", _RANKS, positional=3
)
LOAD_RESULT = Hook(
    f"{_SRT}.managers.io_struct", "LoadLoRAAdapterReqOutput", _RANKS, keywords=("success", "error_message")
)

FORMAT = "streamer"
_VERSION = "#version="  # after the URL of an adapter, between processes of SGLang

_OWN_SCHEMES = ("redis://", "instance://")  # schemes of SGLang for other processes, not for storages
_KEPT = (FORMAT, "remote", "dummy")  # load formats that are not replaced for URLs

_log = OwnLogger()


def register_hooks() -> None:
    """Register the hooks; SGLang applies them afterwards, also in modules that have imported the wrapped names."""
    if FORMAT not in LOAD_FORMAT_CHOICES:
        add_load_format_choices([FORMAT])
    hooks: dict[str, Callable[..., Any]] = {
        "sglang.srt.utils.runai_utils.is_runai_obj_uri": _is_pulled,
        "sglang.srt.utils.runai_utils.ObjectStorageModel.download_and_get_path": _pulled,
        "sglang.srt.arg_groups.model_path_hook.handle_load_format": _choose_format,
        "sglang.srt.configs.load_config.LoadConfig._verify_load_format": _verify_format,
        "sglang.srt.model_loader.loader.get_model_loader": _loader,
        "sglang.srt.model_loader.loader.DefaultModelLoader.__init__": _own_loader,
    }
    if ADAPTER.fits():
        hooks[f"{ADAPTER.label}.__init__"] = _adapter
        if LOAD_ADAPTER.fits() and LOAD_RESULT.fits():
            hooks[LOAD_ADAPTER.label] = _adapter_for_ranks
    for name, hook in hooks.items():
        HookRegistry.register(name, hook, HookType.AROUND)


def _is_pulled(theirs: Callable[..., bool], name: Any) -> bool:
    return theirs(name) or (is_url(name) and not name.lower().startswith(_OWN_SCHEMES))


def _pulled(theirs: Callable[..., str], owner: Any, url: str) -> str:  # noqa: ARG001
    """Pull the small files of a model, once per node."""
    folder = str(owner.get_path(url))
    # SGLang does not pass here whether the user trusts the code; it checks this before it runs any.
    pull_small_files(url, folder, _log, takes_code=True)
    return folder


def _adapter(theirs: Callable[..., None], config: Any, path: Any = None, *others: Any, **named: Any) -> None:
    """Pull an adapter, once per node, when a process of SGLang opens it."""
    theirs(config, _pulled_adapter(path) or path, *others, **named)


async def _adapter_for_ranks(theirs: Callable[..., Awaitable[Any]], manager: Any, request: Any, *others: Any) -> Any:
    """Pull an adapter before SGLang passes the request to its processes, which get the version with the URL."""
    try:
        folder = await asyncio.to_thread(_pulled_adapter, request.lora_path)
    except (StreamerError, OSError) as error:
        return LOAD_RESULT.found()(success=False, error_message=str(error))
    if folder is not None:
        url = request.lora_path.partition(_VERSION)[0]
        request.lora_path = f"{url}{_VERSION}{folder.rpartition('-')[2]}"
    return await theirs(manager, request, *others)


def _pulled_adapter(path: Any) -> str | None:
    """Return the folder of an adapter on this node; None if no URL names it."""
    if not is_url(path):
        return None
    name, mark, version = path.partition(_VERSION)
    url = adapter_url(name if re.fullmatch(r"[0-9a-f]*", version) else path)
    if url is None:
        return None
    return pull_adapter(url, f"{ObjectStorageModel.get_path(url)}_adapter", _log, version if mark else None)


def _own_loader(theirs: Callable[..., None], loader: Any, load_config: Any) -> None:
    """Let SGLang read a LoRA with its own loader, to which it passes the load format of the model."""
    if load_config.load_format == FORMAT and type(loader).__name__ == "DefaultModelLoader":
        load_config = changed(load_config, load_format="auto", model_loader_extra_config={})
    theirs(loader, load_config)


def _choose_format(theirs: Callable[..., None], server_args: Any) -> None:
    """Keep this load format, which SGLang would replace for URLs; choose it for URLs that no other format reads."""
    view = resolving_view(server_args)
    requested, draft = view.load_format, view.speculative_draft_model_path
    requested_for_draft = view.speculative_draft_load_format
    theirs(server_args)
    chosen = {}
    if requested == FORMAT or _is_ours(view.model_path):
        chosen["load_format"] = requested if requested in _KEPT else FORMAT
    if requested_for_draft is None and is_url(draft) and (requested == FORMAT or _is_ours(draft)):
        chosen["speculative_draft_load_format"] = FORMAT
    if chosen:
        _log.info("The load formats of %s: %s", redact(str(view.model_path)), chosen)
        declare_resolution(server_args, FORMAT, **chosen)


def _is_ours(name: Any) -> bool:
    return is_url(name) and not name.lower().startswith((*_OWN_SCHEMES, *SUPPORTED_SCHEMES))


def _verify_format(theirs: Callable[..., None], config: Any) -> None:
    if config.load_format != FORMAT:
        theirs(config)


def _loader(theirs: Callable[..., Any], load_config: Any, model_config: Any = None) -> Any:
    if load_config.load_format != FORMAT:
        return theirs(load_config, model_config)
    reason = first_misfit(LOADER)
    if reason is not None:
        raise refusal(reason, COMMAND, FORMAT)
    from streamer.integrations.sglang.loader import StreamerModelLoader  # noqa: PLC0415 (it imports models)

    return StreamerModelLoader(load_config)
