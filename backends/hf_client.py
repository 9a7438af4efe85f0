"""What is asked of a Hub: which commit a revision is, what a folder of it holds, and where a file lies.

Guarantees: the token is sent to the Hub's own host only; a listing is complete, and its pages lead nowhere else.
huggingface_hub finds token and endpoint; its requests are not used, as several wait for ever on a silent server.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin

from huggingface_hub import constants
from huggingface_hub.utils._headers import get_token_to_send

from streamer.backends.hf_errors import refusal
from streamer.backends.hf_paths import COMMIT, HfPath
from streamer.backends.http_access import access_of, merged_options
from streamer.backends.http_client import HttpClient
from streamer.backends.http_errors import raise_connection_error
from streamer.backends.http_probe import Probe, probe
from streamer.backends.http_redirects import Hop, origin_of
from streamer.core.errors import CredentialsError, ObjectNotFoundError, OptionError, StorageError

__all__ = ["HubClient", "HubFile"]

_OF_HTTP = ("verify", "proxy", "proxy_auth", "timeout", "ssl")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')


class HubFile(NamedTuple):
    """A file of a commit: its name in its folder, its size, and its SHA-256 where the Hub knows it."""

    name: str
    size_bytes: int
    sha256: str | None


class HubClient:
    """Asks one Hub, under one token, about one repository.

    Args:
        place: The repository and revision.
        storage_options: ``token``, ``endpoint``, and of the HTTP backend's ``verify``, ``proxy`` and ``timeout``.

    Attributes:
        access: Certificates and proxy.
        client: Sends the requests.
        endpoint: URL of the Hub.

    Raises:
        OptionError: a value of the wrong kind, or one that is refused.
        CredentialsError: ``token=True`` without a saved login.
    """

    def __init__(self, place: HfPath, storage_options: Mapping[str, Any]) -> None:
        _check_names(storage_options)
        self._place = place
        self.endpoint = _endpoint(storage_options.get("endpoint"))
        headers = _token_headers(storage_options.get("token"))
        http = merged_options({name: storage_options[name] for name in _OF_HTTP if name in storage_options})
        self.access = access_of(self.endpoint, {**http, "headers": headers})
        self.client = HttpClient(self.access, partial(refusal, has_token=bool(headers)))

    def commit(self, uri: str) -> str:
        """Ask which commit the revision is now."""
        told, _ = self._asked(self._api(f"revision/{quote(self._place.revision, safe='')}"), uri)
        commit = told.get("sha") if isinstance(told, dict) else None
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise StorageError("The answer names no commit", uri=uri, hint="Check the endpoint")
        return commit

    def listed(self, commit: str, folder: str, uri: str) -> Iterator[HubFile]:
        """Describe the files directly in a folder; none when there is no such folder.

        Raises:
            ObjectNotFoundError: there is no such repository or commit.
            StorageError: anything else the Hub or the network has to say.
        """
        url: str | None = self._api(f"tree/{commit}" + (f"/{quote(folder, safe='')}" if folder else ""))
        seen: set[str] = set()
        while url is not None:
            if url in seen or origin_of(url) != origin_of(self.endpoint):
                raise StorageError("The Hub's listing leads astray", uri=uri)
            seen.add(url)
            try:
                entries, url = self._asked(url, uri)
            except ObjectNotFoundError as error:
                if error.code == "EntryNotFound":
                    return
                raise
            yield from _files(entries, folder, uri)

    def start(self, commit: str, path: str) -> Hop:
        """Name the URL under which the Hub tells where a file lies."""
        place = self._place
        url = f"{self.endpoint}/{place.resolve_prefix}{place.repository}/resolve/{commit}/{quote(path)}"
        return Hop(url, self.access.headers)

    def probe(self, commit: str, path: str, uri: str) -> Probe:
        """Ask where a file lies, and for its first byte there; raises as `http_probe.probe`."""
        return self.client.run(probe, self.client, self.start(commit, path), uri)

    def _asked(self, url: str, uri: str) -> tuple[Any, str | None]:
        """Return the document behind a URL of the API, and the URL of its next page."""
        document, link = self.client.run(self._document, url, uri)
        following = _NEXT.search(link)
        return document, urljoin(url, following[1]) if following else None

    async def _document(self, url: str, uri: str) -> tuple[Any, str]:
        answer = await self.client.opened(Hop(url, self.access.headers), uri, {})
        try:
            return json.loads(await answer.response.read()), answer.headers.get("Link", "")
        except ValueError:
            raise StorageError("The answer is not one of the Hub's", uri=uri, hint="Check the endpoint") from None
        except Exception as error:
            raise_connection_error(error, uri)
        finally:
            answer.response.close()

    def _api(self, rest: str) -> str:
        return f"{self.endpoint}/api/{self._place.kind}s/{self._place.repository}/{rest}"


def _files(entries: Any, folder: str, uri: str) -> list[HubFile]:
    try:
        files = [
            (str(entry["path"]).rpartition("/"), int(entry["size"]), _sha256(entry))
            for entry in entries
            if entry["type"] == "file"
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise StorageError("The answer lists no files", uri=uri, hint="Check the endpoint") from None
    return [HubFile(name, size, sha256) for (parent, _, name), size, sha256 in files if parent == folder]


def _sha256(entry: Mapping[str, Any]) -> str | None:
    """Files in LFS or Xet are named by their hash; small ones in Git itself have only Git's own."""
    told = (entry.get("lfs") or {}).get("oid")
    return told if isinstance(told, str) and _SHA256.fullmatch(told) else None


def _check_names(storage_options: Mapping[str, Any]) -> None:
    """A mistyped ``token`` would silently mean another login."""
    known = ("token", "endpoint", *_OF_HTTP)
    unknown = [name for name in storage_options if name not in known]
    if unknown:
        raise OptionError(f"hf:// has no storage option {unknown[0]!r}", hint=f"It has {', '.join(known)}")


def _endpoint(given: Any) -> str:
    endpoint = str(given or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    if not endpoint.startswith(("http://", "https://")) or "@" in endpoint or "?" in endpoint:
        raise OptionError("endpoint must be the http:// or https:// URL of a Hub, without user and query")
    return endpoint


def _token_headers(token: Any) -> dict[str, str]:
    if not isinstance(token, (str, bool, type(None))):
        raise OptionError("token must be text, True for the saved login, or False for none")
    try:
        # Not `build_hf_headers`: for its user agent it asks huggingface.co, which the caller may not have named.
        found = get_token_to_send(token)
    except OSError:  # the library's LocalTokenNotFoundError
        raise CredentialsError(
            "There is no saved login of the Hub", hint="Set HF_TOKEN, or run `hf auth login`"
        ) from None
    return {"authorization": f"Bearer {found}"} if found is not None else {}
