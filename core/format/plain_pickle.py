"""Reads a pickle as data: no class in it is imported, and no function in it is called.

A pickle is a program. Here it may only name the classes and values that the caller lists. A class becomes an inert
`Record`, which is new for each call, so that changes of its attributes have no effect on other calls. A function
or value becomes an immutable object that the caller passes. Refuses everything else with FormatError; the caller sets
its `uri`.

Lengths and positions are checked before Python's unpickler allocates memory for them: it allocates its memo up to any
position at once, so twelve bytes could take all memory. Refuses positions and lengths that are larger than the pickle,
and sets, which take 216 bytes of memory for one byte. Other faults of a pickle are left to the unpickler.

Format: https://docs.python.org/3/library/pickletools.html
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from streamer.core.errors import FormatError
from streamer.core.quoting import quoted

# Opcodes without a length, with the bytes of their argument; most of a pickle consists of these.
_PLAIN = re.compile(
    rb"(?:[()0-2NQRabdelostu}\])\x81\x85-\x89\x92-\x94\x97\x98]|[Khq\x80\x82].|[M\x83]..|[Jj\x84]....|[G\x95].{8})*",
    re.DOTALL,
)
# Opcodes with a length, and the number of bytes of the length.
_COUNTED = {b"C": 1, b"U": 1, b"\x8a": 1, b"\x8c": 1, b"B": 4, b"T": 4, b"X": 4, b"\x8b": 4}
_COUNTED |= {b"\x8d": 8, b"\x8e": 8, b"\x96": 8}
_LINES = {b"F": 1, b"I": 1, b"L": 1, b"P": 1, b"S": 1, b"V": 1, b"c": 2, b"g": 1, b"i": 2, b"p": 1}
_LONG_PUT, _TEXT_PUT = b"r", b"p"
_SETS = (b"\x8f", b"\x90", b"\x91")


def check_lengths(data: bytes) -> None:
    r"""Check a pickle.

    Example:
        >>> check_lengths(b"\x80\x04Nr\xff\xff\xff\xff.")
        Traceback (most recent call last):
        streamer.core.errors.FormatError: the pickle gives position 4294967295, and has 9 bytes
    """
    position = 0
    while True:
        match = _PLAIN.match(data, position)
        position = match.end() if match else position
        opcode = data[position : position + 1]
        position += 1
        if opcode in _COUNTED:
            end = position + _COUNTED[opcode]
            length = int.from_bytes(data[position:end], "little")
            _check(length, "length", data)
            position = end + length
        elif opcode == _LONG_PUT:
            _check(int.from_bytes(data[position : position + 4], "little"), "position", data)
            position += 4
        elif opcode in _LINES:
            for _ in range(_LINES[opcode]):
                line, position = _line(data, position)
            if opcode == _TEXT_PUT:
                _check(_number(line), "position", data)
        elif opcode in _SETS:
            raise FormatError("the pickle holds a set")
        else:  # the end of the pickle, or an invalid opcode
            return


def _line(data: bytes, begin: int) -> tuple[bytes, int]:
    end = data.find(b"\n", begin)
    end = len(data) if end < 0 else end
    return data[begin:end], end + 1


def _number(line: bytes) -> int:
    try:
        return int(line)
    except ValueError:  # the unpickler refuses it
        return 0


def _check(number: int, what: str, data: bytes) -> None:
    if number > len(data):
        raise FormatError(f"the pickle gives {what} {number}, and has {len(data)} bytes")


GlobalName: TypeAlias = tuple[str, str]  # the module and the name in it


class Record:
    """Stands for an object of a class that was not imported."""

    __slots__ = ("arguments", "state")

    arguments: tuple[Any, ...]  # the arguments for the constructor of the class
    state: Any  # the state for the attributes, usually a dict; None without a state

    def __new__(cls, *arguments: Any) -> Record:
        """Keep the arguments."""
        record = super().__new__(cls)
        record.arguments, record.state = arguments, None
        return record

    def __setstate__(self, state: Any) -> None:
        """Keep the state, in place of the class's own attributes."""
        self.state = state

    @property
    def kind(self) -> str:
        """The name of the class."""
        return type(self).__name__


class Foreign(Record):
    """Stands for a name that the caller does not list: a class, a function, or what a call of it would return.

    It accepts what a pickle does to such an object, and does nothing.
    """

    __slots__ = ()

    def __new__(cls, *arguments: Any, **named: Any) -> Foreign:
        """Keep the arguments."""
        del named
        made = super().__new__(cls, *arguments)
        assert isinstance(made, Foreign)
        return made

    def __call__(self, *arguments: Any) -> Foreign:
        """Return another one, in place of what a function that the pickle looked up would return."""
        return type(self)(*arguments)

    def append(self, value: Any) -> None:
        """Do nothing; pickles fill lists so."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Do nothing; pickles fill dicts so."""


class _Function:
    """An immutable function, because a pickle may try to set attributes of its objects."""

    __slots__ = ()


def same(kind: type) -> _Function:
    """Make a function that returns its argument, of exactly this type; it stands in for the constructor of a subclass.

    Example:
        >>> same(tuple)((1, 2))
        (1, 2)
    """

    def call(_: _Function, value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(type(value).__name__)
        return value

    function: _Function = type("_Same", (_Function,), {"__slots__": (), "__call__": call})()
    return function


class _EmptyDict(_Function):
    __slots__ = ()

    def __call__(self) -> dict[Any, Any]:
        return {}


empty_dict = _EmptyDict()


def read_plain(
    data: bytes | memoryview,
    records: Collection[GlobalName],
    builtins: Mapping[GlobalName, Any],
    persistent: Callable[[Any], Any] | None = None,
    *,
    takes_foreign: bool = False,
) -> Any:
    r"""Read a pickle.

    Example:
        >>> read_plain(b"cpathlib\nPosixPath\n(S'a'\ntR.", {("pathlib", "PosixPath")}, {}).arguments
        ('a',)
    """
    content = bytes(data)
    check_lengths(content)
    try:
        unpickler = _PlainUnpickler(io.BytesIO(content), records, builtins, persistent)
        unpickler.takes_foreign = takes_foreign
        return unpickler.load()
    except FormatError:
        raise
    except Exception as error:  # a malformed pickle may raise any exception
        raise FormatError(f"the pickle is malformed: {type(error).__name__}") from error


class _PlainUnpickler(pickle.Unpickler):
    takes_foreign = False

    def __init__(
        self,
        file: io.BytesIO,
        records: Collection[GlobalName],
        builtins: Mapping[GlobalName, Any],
        persistent: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(file)
        self._records, self._builtins, self._persistent = records, builtins, persistent
        self._kinds: dict[GlobalName, type[Record]] = {}

    def find_class(self, module: str, name: str) -> Any:
        named = module, name
        if named in self._builtins:
            return self._builtins[named]
        is_foreign = named not in self._records
        if is_foreign and not self.takes_foreign:
            raise FormatError(
                f"the pickle names {quoted(f'{module}.{name}')}, which does not belong there; nothing of it was run",
                hint="Do not load it with other tools, unless you trust who wrote it",
            )
        if named not in self._kinds:
            kind = f"{module}.{name}" if is_foreign else name
            self._kinds[named] = type(kind, (Foreign if is_foreign else Record,), {"__slots__": ()})
        return self._kinds[named]

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise FormatError("the pickle refers to objects outside of it")
        return self._persistent(pid)
