"""The names of vLLM that the plug-in needs; each is tested on its own, whatever the version.

They are tested without tensors, as vLLM registers its plug-ins before it has a model; the first load does the dry run
of `loader.py`. Each load checks that vLLM requests tensors, see `StreamerModelLoader.load_weights`.

Log lines of this package are forwarded to vLLM's log, which contains only lines of vLLM's own loggers.
"""

from __future__ import annotations

from streamer.compat.hooks import Hook
from streamer.integrations.serving.engine_hooks import without_url

COMMAND = "vllm serve"

_LOADERS = "vllm.model_executor.model_loader"
_OF_FILES = f"{_LOADERS}.default_loader"
_OF_RANKS = f"{_LOADERS}.sharded_state_loader"
_NO_FORMAT = without_url(COMMAND, "streamer")
_NO_SHARDED_FORMAT = without_url(COMMAND, "streamer_sharded")
_NO_URL = "a URL cannot name the model. Use: python -m streamer pull URI DIR, then vllm serve DIR"
_FIELDS = ("allow_patterns_overrides", "is_unused_weight")

REGISTRATION = (
    Hook(_LOADERS, "register_model_loader", _NO_FORMAT, positional=1),
    Hook(f"{_LOADERS}.base_loader", "BaseModelLoader", _NO_FORMAT, positional=1),
)

# Names that our loaders derive from or call, by load format.
LOADERS = {
    "streamer": (
        Hook(_OF_FILES, "DefaultModelLoader", _NO_FORMAT, positional=1),
        Hook(_OF_FILES, "DefaultModelLoader.load_weights", _NO_FORMAT, positional=3),
        Hook(_OF_FILES, "DefaultModelLoader.get_all_weights", _NO_FORMAT, positional=3),
        Hook(_OF_FILES, "DefaultModelLoader.Source", _NO_FORMAT, positional=2, keywords=_FIELDS),
        Hook(f"{_LOADERS}.ep_weight_filter", "should_skip_weight", _NO_FORMAT, positional=2),
        Hook(f"{_LOADERS}.weight_utils", "enable_tqdm", _NO_FORMAT, positional=1),
    ),
    "streamer_sharded": (
        Hook(_OF_RANKS, "ShardedStateLoader", _NO_SHARDED_FORMAT, positional=1),
        Hook(_OF_RANKS, "ShardedStateLoader.load_weights", _NO_SHARDED_FORMAT, positional=3),
        Hook(_OF_RANKS, "ShardedStateLoader._render_default_pattern", _NO_SHARDED_FORMAT, 1, ("part",)),
        Hook(_OF_RANKS, "ShardedStateLoader._filter_subtensors", _NO_SHARDED_FORMAT, positional=1),
    ),
}

# Names that are needed so that a URL can name a model.
CONFIGURATION = (
    Hook("vllm.assets.base", "get_cache_dir", _NO_URL),
    Hook("vllm.transformers_utils.runai_utils", "is_runai_obj_uri", _NO_URL, positional=1),
    Hook("vllm.transformers_utils.utils", "is_cloud_storage", _NO_URL, positional=1),
    Hook("vllm.config.model", "ModelConfig.maybe_pull_model_tokenizer_for_runai", _NO_URL, positional=3),
    Hook("vllm.config.model", "ModelConfig.maybe_untie_word_embeddings", _NO_URL, positional=1),
    Hook("vllm.config.vllm", "VllmConfig.try_verify_and_update_config", _NO_URL, positional=1),
)

# Names that are needed so that a URL can name a LoRA adapter.
_NO_ADAPTER = "a URL cannot name a LoRA adapter. Use: python -m streamer pull URI DIR, then --lora-modules NAME=DIR"
ADAPTERS = (
    Hook("vllm.lora.request", "LoRARequest", _NO_ADAPTER, keywords=("lora_name", "lora_int_id", "lora_path")),
    Hook("vllm.lora.resolver", "LoRAResolver.resolve_lora", _NO_ADAPTER, positional=3),
    Hook("vllm.lora.resolver", "LoRAResolverRegistry.get_supported_resolvers", _NO_ADAPTER),
    Hook("vllm.lora.resolver", "LoRAResolverRegistry.register_resolver", _NO_ADAPTER, positional=2),
)

LOGGER = "vllm.streamer"
