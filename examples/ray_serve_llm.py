"""An engine of Ray Serve LLM whose nodes are warm before it loads: ``python examples/ray_serve_llm.py URI [FOLDER]``.

URI is ``s3://``, ``gs://``, ``abfss://`` or ``azure://``. FOLDER is the cache's folder on each node; without it, each
node has it in ``STREAMER_CACHE_DIR``. It needs a GPU, and a vLLM that this Ray and streamer's load format fit: for Ray
2.60 that is 0.32.0, and not the 0.29.0 of ``ray[llm]``.
"""

from __future__ import annotations

import sys
from typing import Any

from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app


def config_of(uri: str, folder: str | None = None, environment: dict[str, str] | None = None, **how: Any) -> LLMConfig:
    """Return a configuration with `WarmNodes`; vLLM's load format ``runai_streamer`` is streamer's loader."""
    variables = {"STREAMER_TAKE_OVER_RUNAI": "1", **(environment or {})}
    if folder:
        variables["STREAMER_CACHE_DIR"] = folder
    return LLMConfig(
        model_loading_config={"model_id": "model", "model_source": uri},
        engine_kwargs={"load_format": "runai_streamer"},
        runtime_env={"env_vars": variables},
        callback_config={"callback_class": "streamer.integrations.ray.serve_llm:WarmNodes"},
        **how,
    )


def main(uri: str, folder: str | None = None) -> None:
    serve.run(build_openai_app({"llm_configs": [config_of(uri, folder)]}), blocking=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
