"""Fetch safetensors' own Python tests, from its source distribution on the package index, into a folder.

python tests/conformance/fetch_safetensors.py .venv/safetensors-suite
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "0.8.0"
URL = (
    "https://files.pythonhosted.org/packages/45/06/f955dbbb1859e3bd23c8ac6141af5106e7ad5fedec4a3a6e3d60f94b7001/"
    f"safetensors-{VERSION}.tar.gz"
)
SHA256 = "fabaf3e0f18a6618d9b36560682562157f77c2b71fcffc7b432be2baed9d753d"
TESTS = f"safetensors-{VERSION}/bindings/python/tests/"


def main(folder: Path) -> None:
    with urllib.request.urlopen(URL, timeout=120) as answer:
        archive = answer.read()
    digest = hashlib.sha256(archive).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{URL} has the SHA-256 {digest}, not {SHA256}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if member.isfile() and member.name.startswith(TESTS):
                target = folder / "tests" / member.name.removeprefix(TESTS)
                target.parent.mkdir(parents=True, exist_ok=True)
                content = files.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
