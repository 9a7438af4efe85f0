"""The URLs of artifacts: ``oci://registry[:port]/repository[:tag][@digest][/path]``. Pure.

Without a tag and a digest, the whole path names the repository, and its tag is ``latest``. A digest decides which
manifest is read, and a tag beside it is only for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamer.plugins import UsageError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_URL = re.compile(
    rf"oci://(?P<host>[^/@]+)/(?P<repository>{_NAME}(?:/{_NAME})*)"
    rf"(?:(?=[:@])(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?:@(?P<digest>{DIGEST.pattern}))?"
    r"(?:/(?P<path>.*))?)?",
    re.DOTALL | re.IGNORECASE,
)
_LOCAL = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
_HUB = "docker.io"
_HUB_HOSTS = frozenset({_HUB, "index.docker.io", "registry-1.docker.io"})


@dataclass(frozen=True)
class Reference:
    """One artifact of a registry, and a path in it."""

    host: str  # as the user wrote it, with the port
    repository: str
    name: str  # tag or digest, as the registry's API takes it
    path: str  # of a file or folder in the artifact; empty for the artifact
    prefix: str  # of the store's paths: the URL without its scheme and without `path`

    @property
    def api_host(self) -> str:
        """The host that serves the API."""
        return "registry-1.docker.io" if self.is_of_hub else self.host

    @property
    def is_of_hub(self) -> bool:
        """Whether the registry is Docker Hub, whose names have exceptions."""
        return self.host in _HUB_HOSTS

    @property
    def is_local(self) -> bool:
        """Whether the registry is on this machine, where registries have no TLS unless the user says so."""
        return _LOCAL.fullmatch(self.host) is not None

    @property
    def is_pinned(self) -> bool:
        """Whether a digest names the manifest."""
        return DIGEST.fullmatch(self.name) is not None


def parse_reference(uri: str) -> Reference:
    """Parse a URL.

    Example:
        >>> parse_reference("oci://ghcr.io/org/llama:v1/vae/a.safetensors").path
        'vae/a.safetensors'
        >>> parse_reference("oci://localhost:5000/llama").name
        'latest'
    """
    match = _URL.fullmatch(uri)
    if match is None or match["repository"] != match["repository"].lower():
        raise UsageError(
            "This is not the URL of an artifact",
            uri=uri,
            hint="Write oci://registry/repository:tag, with the repository in lower case, and a path behind it",
        )
    host, repository, path = match["host"].lower(), match["repository"], (match["path"] or "").strip("/")
    if host in _HUB_HOSTS and "/" not in repository:
        repository = f"library/{repository}"
    prefix = uri[len("oci://") : match.start("path") - 1] if match["path"] is not None else uri[len("oci://") :]
    name = (match["digest"] or "").lower() or match["tag"] or "latest"
    return Reference(host, repository, name, path, prefix)
