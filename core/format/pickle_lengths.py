r"""Checks the lengths and positions in a pickle, before Python's unpickler allocates memory for them.

The unpickler allocates its memo up to any position at once: twelve bytes can take all memory. Refuses positions and
lengths that are larger than the pickle, and sets, which take 216 bytes of memory for one byte. Other faults of a pickle
are left to the unpickler.

Format: https://docs.python.org/3/library/pickletools.html
"""

from __future__ import annotations

import re

from streamer.core.errors import FormatError

__all__ = ["check_lengths"]

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

    Raises:
        FormatError: the pickle holds a length or a position that is larger than the pickle, or a set.

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
