"""Batch inference with Ray Data: each worker loads once, from the cache of its node.

``python examples/ray_data.py URI [FOLDER]``; FOLDER is as for ``ray_warm.py``.
"""

from __future__ import annotations

import sys
from typing import Any

import ray

import streamer


class Predictor:
    """Adds the sum of all means to each row; a real one would call its model."""

    def __init__(self, uri: str) -> None:
        weights = streamer.ray.load(uri, framework="np", progress=False)
        self.offset = sum(float(each.mean()) for each in weights.values())

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the predictions of a batch."""
        return {"prediction": batch["id"] + self.offset}


def main(uri: str, folder: str | None = None) -> None:
    ray.init(ignore_reinit_error=True)
    streamer.ray.warm(uri, cache_dir=folder)
    rows = ray.data.range(64).map_batches(
        Predictor, fn_constructor_args=(uri,), concurrency=2, num_cpus=0.5, batch_size=8
    )
    predictions = sorted(row["prediction"] for row in rows.take_all())
    print(f"{len(predictions)} predictions, from {predictions[0]:.0f} to {predictions[-1]:.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
