"""What a type checker says of the results; `make lint` checks this file, and nothing runs it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import streamer
from streamer.core.checkpoint.lazy_tensor import TensorSlice


def _results(framework: str) -> None:
    assert_type(streamer.load("m"), dict[str, torch.Tensor])
    assert_type(streamer.load("m", framework="pt", device="cuda"), dict[str, torch.Tensor])
    assert_type(streamer.load("m", framework="np", names="a.*"), dict[str, NDArray[Any]])
    assert_type(streamer.load("m", framework=framework), dict[str, Any])
    assert_type(streamer.load_file("m"), dict[str, torch.Tensor])
    for name, tensor in streamer.stream("m", order="file"):
        assert_type(name, str)
        assert_type(tensor, torch.Tensor)
    with streamer.open("m") as checkpoint:
        assert_type(checkpoint.get_tensor("a", dtype=torch.float16), torch.Tensor)
        assert_type(checkpoint["a"], TensorSlice[torch.Tensor])
        assert_type(checkpoint["a"][:3], torch.Tensor)
    assert_type(streamer.open("m", framework="numpy").get_tensors(), dict[str, NDArray[Any]])
    assert_type(streamer.open("m", framework="np").get_tensor("a")[0], Any)
    _kept: streamer.Checkpoint = checkpoint  # the class alone is a type
    assert_type(streamer.load_into("m", {}, strict=False, framework="np", dtype="target"), streamer.LoadReport)
    streamer.load("m", device=0, devise=0)  # type: ignore[call-overload]  # a typo is found
    streamer.load_into("m", {}, devise=0)  # type: ignore[call-arg]
    streamer.load_into("m", {}, verify="x")  # type: ignore[arg-type]
    streamer.stream("m", order="x")  # type: ignore[call-overload]
    np.asarray(streamer.load("m", framework="np")["a"])


async def _asynchronous_results() -> None:
    assert_type(await streamer.aload("m", device="cuda"), dict[str, torch.Tensor])
    async for _name, tensor in streamer.astream("m", framework="np", order="file"):
        assert_type(tensor, NDArray[Any])
    await streamer.aload("m", devise=0)  # type: ignore[call-overload]
