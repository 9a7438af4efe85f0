"""Check what a wheel brings along: only the libraries it needs, HTTP alone in its libcurl, and nothing out of date.

    python3 tests/packaging/check_bundle.py WHEEL

Its bills of materials (CycloneDX, one by auditwheel, one for our own libcurl) name the distribution's package of each
library; a package of which the distribution has a newer version ends the check. A libcurl for another processor is not
asked what it speaks: native/wheel/build_curl.sh has asked its build.
"""

from __future__ import annotations

import ctypes
import json
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from urllib.parse import unquote

ALLOWED = {"libcrypto", "libcurl", "libnfs", "libssl", "liburing"}
NAMED = {"curl", "libnfs", "libssl", "liburing"}  # beginnings of packages that must be in the bills
SOURCES = {"curl": "libcurl4-openssl-dev"}  # packages by which apt knows the version of a source


class CurlVersion(ctypes.Structure):
    """The beginning of ``curl_version_info_data``."""

    _fields_ = (
        ("age", ctypes.c_int),
        ("version", ctypes.c_char_p),
        ("version_num", ctypes.c_uint),
        ("host", ctypes.c_char_p),
        ("features", ctypes.c_int),
        ("ssl_version", ctypes.c_char_p),
        ("ssl_version_num", ctypes.c_long),
        ("libz_version", ctypes.c_char_p),
        ("protocols", ctypes.POINTER(ctypes.c_char_p)),
    )


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        libraries = sorted(Path(folder).glob("streamer.libs/*"))
        names = {library.name.partition("-")[0].partition(".")[0] for library in libraries}
        assert names <= ALLOWED, f"the wheel brings {sorted(names - ALLOWED)} along"
        if platform.machine() in wheel.name:
            protocols = protocols_of(next(library for library in libraries if library.name.startswith("libcurl")))
            assert protocols == ["http", "https"], f"libcurl speaks {protocols}"
        packages = dict(packages_in(Path(folder)))
    for beginning in NAMED:
        assert any(package.startswith(beginning) for package in packages), f"no bill names {beginning}"
    for package, version in sorted(packages.items()):
        newest = candidate(SOURCES.get(package, package))
        assert version == newest, f"{package} {version} is bundled, {newest} is there"
        print(f"{package} {version}: the newest")


def protocols_of(library: Path) -> list[str]:
    """Ask a libcurl what it speaks; its neighbours are loaded first, as the wheel's engine would."""
    for beginning in ("libcrypto", "libssl"):
        ctypes.CDLL(str(next(library.parent.glob(f"{beginning}*"))), mode=ctypes.RTLD_GLOBAL)
    curl = ctypes.CDLL(str(library))
    curl.curl_version_info.restype = ctypes.POINTER(CurlVersion)
    found, protocols = curl.curl_version_info(0).contents.protocols, []
    while (name := found[len(protocols)]) is not None:
        protocols.append(name.decode())
    return protocols


def packages_in(folder: Path) -> list[tuple[str, str]]:
    """Read name and version of each of the distribution's packages in the bills of materials."""
    bills = list(folder.glob("*.dist-info/sboms/*.json"))
    assert bills, "the wheel has no bill of materials"
    components = [each for bill in bills for each in json.loads(bill.read_text())["components"]]
    urls = [each["purl"].partition("?")[0] for each in components if each["purl"].startswith("pkg:deb/")]
    return [(url.rpartition("/")[2].partition("@")[0], unquote(url.rpartition("@")[2])) for url in urls]


def candidate(package: str) -> str:
    """Return the newest version that the distribution offers."""
    reported = subprocess.run(["apt-cache", "policy", package], capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in reported.splitlines() if line.strip().startswith("Candidate:"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
