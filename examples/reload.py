"""Reloads a running engine whenever a version is published: ``python examples/reload.py s3://bucket/run ENGINE [URL]``.

ENGINE is ``sglang``, whose server at URL is asked to update its weights, or ``vllm``, which is started here. Publish
whole folders (``python -m streamer publish DIR s3://bucket/run --keep 3``), so that each version has its config, too.
"""

from __future__ import annotations

import json
import sys
import urllib.request

import streamer


def reload_sglang(uri: str, server: str) -> None:
    """Ask a server that was started with ``--load-format streamer`` to load each new version."""
    for version in streamer.watch(uri):
        body = json.dumps({"model_path": version, "load_format": "streamer"}).encode()
        request = urllib.request.Request(
            f"{server}/update_weights_from_disk", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            print(version, answer.read().decode())


def reload_vllm(uri: str) -> None:
    """Start vLLM with the latest version; all its workers get the folder of each newer one."""
    from vllm import LLM

    versions = streamer.watch(uri)
    engine = LLM(model=next(versions), load_format="streamer")
    for version in versions:
        engine.collective_rpc("reload_weights", kwargs={"weights_path": version})
        engine.reset_prefix_cache()  # it was computed with the older weights
        print(version, engine.generate("Hello")[0].outputs[0].text)


if __name__ == "__main__":
    _, place, name, *rest = sys.argv
    reload_sglang(place, *(rest or ["http://localhost:30000"])) if name == "sglang" else reload_vllm(place)
