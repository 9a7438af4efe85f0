"""What a type checker says of the results; `make lint` checks this file, and nothing runs it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import streamer
from streamer.core.checkpoint.tensor_slice import TensorSlice


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
    streamer.load("m", device=0, devise=0)  # type: ignore[call-overload]  # a typo is found
    np.asarray(streamer.load("m", framework="np")["a"])
