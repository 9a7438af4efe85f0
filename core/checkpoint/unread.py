"""Refuses to use a tensor that is not read yet as a tensor, and to pickle it."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["Unread"]

HINT = "it is not read yet: index it with [...] to read it, or with [:10] to read rows"


def _refuse(self: object, *_: object) -> NoReturn:
    raise TypeError(f"{self!r} cannot be used as a tensor: {HINT}")


class Unread:
    """A base class: operators, attributes of tensors, functions of torch and pickle raise an error with the reason."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python and libraries test objects for such attributes
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        raise AttributeError(f"{self!r} has no {name!r}: {HINT}", name=name, obj=self)

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled or copied: index it with [...], or pickle its checkpoint")

    def __eq__(self, other: object) -> bool:
        """Say whether both are the same object; a comparison with a tensor or a number raises an error."""
        return self is other if other is None or isinstance(other, Unread) else _refuse(self)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True  # so that ``if checkpoint.get(name):`` works, although `__len__` raises

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, _arguments: Any = (), _named: Any = None) -> NoReturn:
        """Refuse every function of torch."""
        name = getattr(function, "__name__", "this function")
        raise TypeError(f"torch's {name} got a {cls.__name__} in place of a tensor: {HINT}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = __float__ = __int__ = __len__ = __setitem__ = _refuse
