"""Exit codes of ``python -m streamer pull`` for errors of the machine."""

from __future__ import annotations

import errno

import pytest

from streamer._commands.output import exit_code_of


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EMFILE, 75), (errno.ENFILE, 75), (errno.ENOMEM, 75), (errno.ENOSPC, 73), (None, 73)]
)
def test_what_the_machine_lacks_at_this_moment_is_tried_again(number: int | None, code: int) -> None:
    assert exit_code_of(OSError(number, "") if number else OSError("")) == code
