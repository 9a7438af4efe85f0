"""The names of a checkpoint's tensors in a target: a prefix is removed, then modules are renamed. Pure.

Refuses a prefix that no name begins with, a key of `rename` that matches no name, and the same new name for two
tensors: each would fill fewer targets than the caller expects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from streamer.core.errors import TargetError, UnknownTensorError, UsageError
from streamer.core.quoting import quoted

__all__ = ["RenameOption", "Renaming"]

RenameOption: TypeAlias = Mapping[str, str | None] | Callable[[str], str | None] | None

SHOWN = 5  # names shown in a message


class Renaming:
    """The arguments ``prefix`` and ``rename`` of `streamer.load_into`.

    Args:
        prefix: The module of the checkpoint to load: the prefix is removed from its names, and all other tensors are
            left out. The dot at its end is optional. None: all names stay as they are.
        rename: Applied after `prefix`: a mapping of names to new names, or a callable that returns the new name. The
            new name None leaves the tensor out. A key is the name of a tensor, or of a module (all names below it), or
            ``""`` (all names that no other key matches). The longest matching key is replaced, the rest stays.

    Raises:
        UsageError: an argument is of another type.

    Example:
        >>> renaming = Renaming("model", {"layers": "blocks", "norm": None})
        >>> renaming.name_of("model.layers.0.weight")
        'blocks.0.weight'
        >>> [renaming.name_of(name) for name in ("model.norm.weight", "lm_head.weight")]
        [None, None]
        >>> Renaming(None, {"": "module"}).name_of("layers.0.weight")
        'module.layers.0.weight'
    """

    def __init__(self, prefix: str | None = None, rename: RenameOption = None) -> None:
        if prefix is not None and not isinstance(prefix, str):
            raise UsageError(f"prefix is text that names begin with, or None, not {type(prefix).__name__}")
        self._prefix = f"{prefix.rstrip('.')}." if prefix else ""
        self._callable = rename if callable(rename) else None
        self._new_by_key: dict[str, str | None] = {}
        if rename is not None and self._callable is None:
            self._new_by_key = _checked(rename)

    @property
    def changes_nothing(self) -> bool:
        """Whether every name stays as it is."""
        return not self._prefix and self._callable is None and not self._new_by_key

    def name_of(self, stored: str) -> str | None:
        """Return the name that a tensor of the checkpoint has in the target; None if it is left out.

        Raises:
            UsageError: the callable returned something else, or no name is left.
        """
        if not stored.startswith(self._prefix):
            return None
        name = stored[len(self._prefix) :]
        new = self._callable(name) if self._callable is not None else self._mapped(name)
        if new is not None and not isinstance(new, str):
            raise UsageError(f"rename returned {type(new).__name__} for {quoted(name)}: a new name is text, or None")
        if new == "":
            raise UsageError(f"nothing is left of the name {quoted(stored)}", hint="Give it a new one with rename=")
        return new

    def names_of(self, stored: Iterable[str]) -> dict[str, str]:
        """Return stored name to new name, without the tensors that are left out.

        Raises:
            TargetError: two tensors get the same name.
        """
        renamed: dict[str, str] = {}
        first: dict[str, str] = {}
        for name in stored:
            new = self.name_of(name)
            if new is None:
                continue
            other = first.setdefault(new, name)
            if other != name:
                raise TargetError(
                    f"the tensors {quoted(other)} and {quoted(name)} of the checkpoint would both be {quoted(new)}",
                    hint="Leave one out: rename it to None, or choose with names=",
                )
            renamed[name] = new
        return renamed

    def check_fits(self, held: Collection[str]) -> None:
        """Check that the checkpoint has names for the prefix and for each key.

        Args:
            held: All names of the checkpoint.

        Raises:
            UnknownTensorError: the prefix, or a key of the mapping, matches no name.
        """
        inside = [name[len(self._prefix) :] for name in held if name.startswith(self._prefix)]
        if held and not inside:
            roots = list(dict.fromkeys(name.partition(".")[0] for name in held))
            begin = ", ".join(map(quoted, roots[:SHOWN])) + (", …" if len(roots) > SHOWN else "")
            raise UnknownTensorError(
                f"no name in the checkpoint begins with the prefix {quoted(self._prefix)}: they begin with {begin}",
                hint=f"rename={{'': {self._prefix[:-1][:80]!r}}} puts it before them, where the target's names have it",
            )
        unused = set(self._new_by_key) - {""} - {self._key_of(name) for name in inside}
        if held and unused:
            key = min(unused)
            is_twice = bool(self._prefix) and f"{key}.".startswith(self._prefix)
            raise UnknownTensorError(
                f"rename has {quoted(key)}, but the checkpoint has no tensor or module of this name",
                hint=f"prefix= has taken {quoted(self._prefix)} off before" if is_twice else "Check its spelling",
            )

    def _mapped(self, name: str) -> str | None:
        key = self._key_of(name)
        if key is None:
            return name
        new = self._new_by_key[key]
        if new is None:
            return None
        return ".".join(part for part in (new, name[len(key) :].removeprefix(".")) if part)

    def _key_of(self, name: str) -> str | None:
        if not self._new_by_key:
            return None
        key = name
        while key and key not in self._new_by_key:
            key = key.rpartition(".")[0]
        return key if key in self._new_by_key else None


def _checked(rename: object) -> dict[str, str | None]:
    if not isinstance(rename, Mapping):
        raise UsageError(f"rename is a mapping of names, a function of a name, or None, not {type(rename).__name__}")
    for key, new in rename.items():
        if not isinstance(key, str) or not (new is None or isinstance(new, str)):
            wrong = new if isinstance(key, str) else key
            raise UsageError(f"rename maps a name to a new name, or to None to drop it, not {type(wrong).__name__}")
    return {key.rstrip("."): new if new is None else new.rstrip(".") for key, new in rename.items()}
