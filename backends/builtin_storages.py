"""The schemes of this package's own backends, their modules, and the extras that install their libraries.

They are found without the metadata of the distribution, which images and bundles leave out. Imports nothing.
"""

from __future__ import annotations

EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "http": "http",
    "https": "http",
    "hf": "hf",
    "nfs": "nfs",
}
STORES = ("models", "modelscope", "msc", "oci", "s3express")  # of the distribution in extras/stores
# The folder of a backend, and the extra that installs its libraries, have one name; local files need no library.
BUILTIN_MODULES = {
    "file": "streamer.backends.posix",
    **{scheme: f"streamer.backends.{extra}" for scheme, extra in EXTRAS.items()},
}
BUILTIN_SCHEMES = frozenset(BUILTIN_MODULES)


def install_hint(scheme: str) -> str | None:
    """Say what installs the backend of a scheme, or its library; None for a scheme of neither.

    The hint is no command, because ``pip install`` would fetch another project: it has this name on the public index.
    """
    if scheme in STORES:
        hint = "Install streamer-stores, from extras/stores of the repository that streamer came from"
        return hint + ("; the object storage of Oracle needs ocifs" if scheme == "oci" else "")
    if scheme not in EXTRAS:
        return None
    return f"Install the extra streamer[{EXTRAS[scheme]}] from the repository or wheel that streamer came from"
