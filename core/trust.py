"""Which certificate authorities to trust when nobody says: the same ones as Python's own TLS."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache

__all__ = ["default_ca_file"]

# A wheel's libcurl was built elsewhere, so its compiled-in path may not exist here. The first two are what
# OpenSSL and Python honour; the others are where distributions keep the bundle.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


def default_ca_file() -> str:
    """Give the PEM bundle to trust: ``SSL_CERT_FILE``, else OpenSSL's, else the distribution's, else certifi's."""
    return os.environ.get("SSL_CERT_FILE") or _system_bundle()


@lru_cache(maxsize=1)
def _system_bundle() -> str:
    for path in (ssl.get_default_verify_paths().cafile, *_BUNDLES):
        if path and os.path.isfile(path):
            return path
    try:
        import certifi  # noqa: PLC0415  only images without any system bundle need it
    except ImportError:
        return ""  # libcurl's own default
    return str(certifi.where())
