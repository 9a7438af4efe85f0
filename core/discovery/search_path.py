"""Distinguishes chosen entries of ``sys.path`` from entries that are there because of where Python was started.

``python -c``, ``python -m`` and a prompt put the working directory first: in a downloaded folder, its files would be
taken for installed ones. So an entry is *accidental*, and is not searched, if it is empty, relative, the working
directory, or the folder of a checkpoint that is being loaded. Such an entry still counts as chosen if a place that no
download can write to names it: ``PYTHONPATH``, by an absolute path, or a ``.pth`` file in site-packages, as old
editable installs leave. It also counts as chosen if it is site-packages or holds this package. This module only imports
modules that every Python imports at its start, so that it can be imported before all others.
"""

import os
import sys


def split_path(folders: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    """Return the chosen entries of ``sys.path``, and the real paths of the accidental ones, each in its order."""
    chosen, accidental = [], []
    here = {_real(folder) for folder in {"", *folders}}
    for entry in sys.path:
        if not is_accidental(entry, here):
            chosen.append(entry)
        elif _real(entry) not in accidental:
            accidental.append(_real(entry))
    return chosen, accidental


def is_accidental(entry: str, folders: set[str]) -> bool:
    """Say whether an entry of ``sys.path`` is there by accident."""
    if not isinstance(entry, str) or (os.path.isabs(entry) and _real(entry) not in folders):
        return False
    real = _real(entry)
    return real != home() and not _is_in_environment(real) and not _is_of_site(real)


def home() -> str:
    """Return the real path of the folder that holds this package."""
    return os.path.dirname(_real(os.path.dirname(sys.modules["streamer"].__file__ or "")))


def _real(path: str) -> str:
    try:
        return os.path.realpath(path or os.curdir)
    except (OSError, ValueError):  # the working directory was deleted, or the locale cannot encode the path
        return path


def _is_in_environment(real: str) -> bool:
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return any(os.path.isabs(each) and _real(each) == real for each in named)


def _is_of_site(real: str) -> bool:
    site = sys.modules.get("site")  # absent under `python -S`, which has no site-packages either
    if site is None:
        return False
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return any(real == _real(folder) or real in _named_in_pth_files(folder) for folder in folders)


def _named_in_pth_files(folder: str) -> set[str]:
    """Return the real paths that the ``.pth`` files of a folder add, as `site` reads them."""
    real_paths: set[str] = set()
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".pth")]
    except OSError:
        return real_paths
    for name in names:
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file]
        except OSError:
            continue
        added = [line for line in lines if line and not line.startswith(("#", "import"))]
        real_paths |= {_real(os.path.join(folder, line)) for line in added}
    return real_paths
