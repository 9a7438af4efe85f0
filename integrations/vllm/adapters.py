"""Answers requests for LoRA adapters that are named by a URL: a resolver of vLLM.

vLLM asks its resolvers for a model that it does not know, if ``VLLM_ALLOW_RUNTIME_LORA_UPDATING`` is set, one request
at a time for each name. It keeps the adapter under the name, and replaces the number that a resolver gives to it.
"""

from __future__ import annotations

import asyncio
import hashlib

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

from streamer.core.errors import ObjectNotFoundError
from streamer.core.log import OwnLogger
from streamer.core.secrets.redact import redact
from streamer.integrations.serving.engine_hooks import forward_log
from streamer.integrations.serving.weights_location import adapter_url, pull_adapter
from streamer.integrations.vllm.configuration import cache_folder
from streamer.integrations.vllm.hooks import LOGGER

NAME = "streamer"

_log = OwnLogger(LOGGER)


def register() -> None:
    """Add the resolver to those of vLLM."""
    if NAME not in LoRAResolverRegistry.get_supported_resolvers():
        LoRAResolverRegistry.register_resolver(NAME, UrlResolver())


class UrlResolver(LoRAResolver):  # type: ignore[misc]
    """Pulls the adapter of a URL, or of a name below ``STREAMER_LORA_URL``, into vLLM's cache."""

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:  # noqa: ARG002
        """Return the request for a pulled adapter; None if the name is not ours, or nothing is there.

        Raises:
            StreamerError: what is there is no adapter, or cannot be read.
        """
        url = adapter_url(lora_name)
        if url is None:
            return None
        forward_log(LOGGER)
        try:
            folder = await asyncio.to_thread(pull_adapter, url, cache_folder(url, "streamer_adapters"), _log)
        except ObjectNotFoundError as error:
            _log.warning("The LoRA adapter %s is not there: %s", redact(lora_name), error)
            return None
        number = 1 + int(hashlib.sha256(lora_name.encode()).hexdigest()[:7], 16)
        return LoRARequest(lora_name=lora_name, lora_int_id=number, lora_path=folder)
