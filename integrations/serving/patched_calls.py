"""Calls within a load that are no operations of torch, and yet need the bytes of a tensor: a recorder fills them first.

Methods that take a tensor's memory, in any thread; methods and functions that read elements without an operation, such
as of tensors in a list; and methods that process the weights of a layer, by kernels that take addresses. A mode of
torch that saw the first ones would see all other calls, too: that took as long as the engine's own loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from streamer.core.tensors import torch_private_names
from streamer.integrations.serving.deferred_tensors import Deferred, all_tensors, read_all

if TYPE_CHECKING:
    from streamer.integrations.serving.recorder import Recorder

_PROCESS = "process_weights_after_loading"
_TAKING = ["__array__", "__dlpack__", "data_ptr", "numpy", "share_memory_", "storage", "tolist", "untyped_storage"]
_READING = ["__repr__", "apply_", "map_", "map2_", "new", "new_tensor"]  # methods that torch shows to no mode
_READING_LISTS = ["tensor", "as_tensor", "asarray", "to_dlpack"]  # functions like them
_SHARING = {"apply_", "map_", "map2_", "to_dlpack"}  # those that write the memory, or give it away

_seeing: list[Recorder] = []  # those of the loads that run
_originals: list[tuple[Any, str, Any]] = []
_patching = threading.Lock()


@contextmanager
def calls_seen_by(recorder: Recorder) -> Iterator[None]:
    """Let a recorder see calls that take a tensor's memory, or read tensors in a list; loads may overlap."""
    with _patching:
        for owner, name, ours in () if _seeing else _replacements():
            _originals.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, ours)
        _seeing.append(recorder)
    try:
        yield
    finally:
        with _patching:
            _seeing.remove(recorder)
            while _originals and not _seeing:
                owner, name, own = _originals.pop()
                if own is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, own)


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    for name in _TAKING:
        yield torch.Tensor, name, _filling(getattr(torch.Tensor, name))
    for owner, names in ((torch.Tensor, _READING), (torch, _READING_LISTS), (torch.utils.dlpack, ["to_dlpack"])):
        for name in names:
            yield owner, name, _with_data(getattr(owner, name))
    data: Any = torch.Tensor.data

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:  # torch crashes if it gets a deferred tensor
        if type(tensor) is Deferred:
            tensor.refuse_other_shape("data =")
        data.__set__(tensor, value.given_away("data =") if type(value) is Deferred else value)

    yield torch.Tensor, "data", property(data.__get__, set_data)


def _filling(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def taken(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if not torch_private_names.is_outside_torch_functions(torch):
            for each in [*_seeing]:
                each.settle(tensor)
        return theirs(tensor, *arguments, **named)

    return taken


def _with_data(theirs: Callable[..., Any]) -> Callable[..., Any]:
    why = theirs.__name__

    @wraps(theirs)
    def made(*arguments: Any, **named: Any) -> Any:
        deferred = list[Deferred]()
        for each in all_tensors((*arguments, *named.values())):
            if type(each) is Deferred:
                deferred.append(each)
            elif not torch_private_names.is_outside_torch_functions(torch):
                for recorder in [*_seeing]:
                    recorder.settle(each)
        for each in deferred if why in _SHARING else ():
            each.given_away(why)
        if deferred:
            arguments, named = read_all(arguments, why), dict(zip(named, read_all([*named.values()], why), strict=True))
        return theirs(*arguments, **named)

    return made


@contextmanager
def filled_before_processing(model: Any, recorder: Recorder) -> Iterator[None]:
    """Fill what is recorded before the engine processes a layer within the load: kernels take parameters by address."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    methods = {id(each): each for each in (getattr(module, "quant_method", None) for module in modules)}
    wrapped = [
        each for each in methods.values() if callable(getattr(each, _PROCESS, None)) and hasattr(each, "__dict__")
    ]
    before = [vars(each).get(_PROCESS) for each in wrapped]
    for each in wrapped:
        setattr(each, _PROCESS, recorder.filled_before(getattr(each, _PROCESS)))
    try:
        yield
    finally:
        for each, own in zip(wrapped, before, strict=True):
            if own is None:
                delattr(each, _PROCESS)
            else:
                setattr(each, _PROCESS, own)
