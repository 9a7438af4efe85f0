"""Workers of Ray Train save one checkpoint together, and load it: ``python examples/ray_train.py URI``.

URI is a folder that all workers can write. Each worker writes its part, and the index comes last. With ``group=``, a
load reads each byte once.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import ray
import ray.train
from ray.train.torch import TorchTrainer

import streamer


def train(config: dict[str, Any]) -> None:
    """Run in each worker; Ray has made the process group."""
    import torch
    from torch import distributed

    model = ray.train.torch.prepare_model(torch.nn.Linear(1024, 1024))  # the same on all workers
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(8, 1024)).sum().backward()
    optimizer.step()
    group = distributed.group.WORLD
    streamer.save(model.module.state_dict(), config["uri"], group=group)
    again = torch.nn.Linear(1024, 1024)
    streamer.load_into(config["uri"], again, group=group)
    for name, tensor in model.module.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)


def main(uri: str) -> None:
    ray.init(ignore_reinit_error=True)
    trainer = TorchTrainer(
        train,
        train_loop_config={"uri": uri},
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(storage_path=tempfile.mkdtemp()),
    )
    trainer.fit()  # raises what a worker has raised
    tensors = streamer.load(uri, framework="np")
    print(f"{len(tensors)} tensors were saved by two workers, and loaded again by both")


if __name__ == "__main__":
    main(*sys.argv[1:])
