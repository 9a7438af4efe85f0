"""Error numbers of a file that cannot grow: no space, no quota, larger than a file may be, mounted read-only."""

from __future__ import annotations

import errno

__all__ = ["NO_ROOM", "NO_ROOM_NAMES"]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
NO_ROOM_NAMES = frozenset(errno.errorcode[number] for number in NO_ROOM)
