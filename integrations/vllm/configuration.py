"""Makes vLLM's configuration accept any URL as a model: its small files are pulled once per node, into a folder.

Four functions are wrapped. ``ModelConfig.maybe_pull_model_tokenizer_for_runai`` pulls with another library, for three
schemes. ``VllmConfig.try_verify_and_update_config`` refuses unknown load formats for object storage.
``is_cloud_storage`` prevents the command line from looking for a URL in the Hub.
``ModelConfig.maybe_untie_word_embeddings`` reads checkpoints, and skips the saved state of a rank only for vLLM's own
load formats.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any

from vllm.assets.base import get_cache_dir
from vllm.config.model import ModelConfig
from vllm.config.vllm import VllmConfig
from vllm.transformers_utils import utils
from vllm.transformers_utils.runai_utils import is_runai_obj_uri

from streamer.core.errors import UsageError
from streamer.core.imported import if_imported
from streamer.core.log import OwnLogger
from streamer.core.secrets.redact import redact
from streamer.integrations.serving.engine_hooks import forward_log
from streamer.integrations.serving.weights_location import is_url, pull_small_files
from streamer.integrations.vllm.hooks import LOGGER

FORMATS = ("streamer", "streamer_sharded")

OF_FILES = ("hf", "safetensors", "fastsafetensors", "instanttensor", "pt", "npcache", "mistral")  # need local files
RANK_FILES = "model-*-part-*.safetensors"  # the default names of vLLM's sharded state

_log = OwnLogger(LOGGER)


def wrap() -> None:
    """Wrap the functions, once."""
    for module in (utils, if_imported("vllm.engine.arg_utils")):  # a worker has no command line
        if module is not None:
            _wrap(module, "is_cloud_storage", lambda theirs, name: theirs(name) or is_url(name))
    _wrap(ModelConfig, "maybe_pull_model_tokenizer_for_runai", _pulling)
    _wrap(ModelConfig, "maybe_untie_word_embeddings", _untying)
    _wrap(VllmConfig, "try_verify_and_update_config", _verifying)


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    theirs = getattr(owner, name)
    if getattr(theirs, "is_of_streamer", False):
        return

    @wraps(theirs)
    def ours(*arguments: Any, **named: Any) -> Any:
        return wrapper(theirs, *arguments, **named)

    ours.is_of_streamer = True  # type: ignore[attr-defined]
    setattr(owner, name, ours)


def _pulling(theirs: Callable[..., None], config: Any, model: str, tokenizer: str) -> None:
    if config.model_weights:
        return  # it was pulled before
    try:
        takes_code = bool(config.trust_remote_code)
        urls = [each for each in dict.fromkeys((model, tokenizer)) if is_url(each)]
        folders = {url: pulled(url, takes_code=takes_code) for url in urls}
    except UsageError as error:  # for instance, streamer[s3] is not installed
        if find_spec("runai_model_streamer") is None or not any(map(is_runai_obj_uri, (model, tokenizer))):
            raise
        _log.warning("%s. Run:ai's package pulls the model's small files", error)
        theirs(config, model, tokenizer)
        return
    if model in folders:
        config.model_weights = model
    config.model, config.tokenizer = folders.get(model, config.model), folders.get(tokenizer, config.tokenizer)


def _verifying(theirs: Callable[..., None], config: Any) -> None:
    load, model = config.load_config, config.model_config
    weights = getattr(model, "model_weights", "")
    if load.load_format == "auto" and is_url(weights) and not is_runai_obj_uri(weights):
        _log.info("The load format of %s is 'streamer'", redact(weights))
        load.load_format = FORMATS[0]
    if is_url(weights) and not is_runai_obj_uri(weights) and load.load_format in OF_FILES:
        raise ValueError(f"{redact(weights)} is read with --load-format streamer, and not {load.load_format}")
    if load.load_format not in FORMATS or not weights:
        theirs(config)
        return
    model.model_weights = ""
    try:
        theirs(config)
    finally:
        model.model_weights = weights


def _untying(theirs: Callable[..., None], config: Any) -> None:
    if not glob.glob(os.path.join(glob.escape(config.model), RANK_FILES)):
        theirs(config)


def pulled(url: str, *, takes_code: bool) -> str:
    """Pull the small files of a model, once per node; return their folder."""
    forward_log(LOGGER)
    folder = cache_folder(url, "streamer")
    pull_small_files(url, folder, _log, takes_code=takes_code)
    return folder


def cache_folder(url: str, kind: str) -> str:
    """Return the folder for the files of a URL in vLLM's cache."""
    return os.path.join(get_cache_dir(), kind, hashlib.sha256(redact(url).encode()).hexdigest()[:16])
