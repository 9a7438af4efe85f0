"""The Hub's control plane: requests the commit of a revision, the files of a folder, and the place of a file.

Guarantees: the token is sent to the Hub's own host only; a listing is complete, with all pages from that host
(`next_page`). An error has the status, the Hub's ``X-Error-Code`` and the request id; no text of the Hub, and no token,
enters a message. huggingface_hub finds token and endpoint; its requests are not used, because some have no time-out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from huggingface_hub import constants

from streamer.backends.client.answer_values import FOREIGN, described, parse_document, refuse_cut
from streamer.backends.client.error_rows import ARCHIVED_ROWS, ErrorRow
from streamer.backends.client.exchange import Response
from streamer.backends.client.option_checks import FLAG, TEXT, check_types, is_sendable
from streamer.backends.client.redirects import Hop, origin_of
from streamer.backends.hf.answers import HubFile, commit_in, entries_in, files_in, names_in, next_page
from streamer.backends.hf.paths import HfPath
from streamer.backends.http import errors as http_errors
from streamer.backends.http.client import HttpClient, access_of
from streamer.backends.http.options import merged_options
from streamer.backends.http.probe import Probe, probe_object
from streamer.backends.hub_variables import hub_endpoint, saved_token
from streamer.backends.option_names import check_option_names
from streamer.core.errors import (
    AccessDeniedError,
    CredentialsError,
    HttpStatusError,
    ObjectNotFoundError,
    OptionError,
    StorageError,
)
from streamer.core.options.limits import Limits, ListingCount
from streamer.core.outages.outage_waits import answered_so_far
from streamer.core.secrets.texts import note_credential
from streamer.core.store.presence import folders_among

_LOGIN = "HF_TOKEN, or storage_options={'token': …}"

NOT_OF_THE_HUB = "The answer is not one of the Hub's"
_CHECK_NAME = "Check the names: hf://owner/name@revision/path"
_CODES: dict[str, ErrorRow[StorageError]] = {
    "GatedRepo": ErrorRow(
        AccessDeniedError,
        "The repository is gated: its owner asks for consent to its terms",
        f"Accept the terms on its page at the Hub, and set {_LOGIN}, with a token that may read gated repositories",
    ),
    "RepoNotFound": ErrorRow(
        ObjectNotFoundError,
        "There is no such repository on the Hub, or it is private",
        f"Check its name; a private one needs {_LOGIN}",
    ),
    "RevisionNotFound": ErrorRow(ObjectNotFoundError, "The repository has no such branch, tag or commit", _CHECK_NAME),
    "EntryNotFound": ErrorRow(
        ObjectNotFoundError, "The repository has no such file or folder in this revision", _CHECK_NAME
    ),
}

_BAD_TOKEN = ErrorRow(CredentialsError, "The Hub does not accept this token", f"Check {_LOGIN}, or run `hf auth login`")
_STATUSES: dict[int, ErrorRow[StorageError]] = {
    403: ErrorRow(AccessDeniedError, "The Hub refuses access", "Check what the token may read"),
    429: ErrorRow(HttpStatusError, "The Hub wants fewer requests", f"Wait a few minutes, or set {_LOGIN}"),
}


def refusal(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    uri: str,
    *,
    has_token: bool,
    attempts: int = 1,
    elapsed_s: float = 0.0,
) -> StorageError:
    """Return the error for an unsuccessful answer of the Hub, or of a store behind it."""
    of_http = http_errors.refusal(status, headers, body, uri, attempts=attempts, elapsed_s=elapsed_s)
    code = headers.get("x-error-code", "")
    row = _CODES.get(code)
    if row is None and status == 401:
        # Without a token the Hub answers the same for private and absent repositories.
        row = _BAD_TOKEN if has_token else _CODES["RepoNotFound"]
    if row is None and headers.get("x-error-message") == "Access to this resource is disabled.":
        row = ErrorRow(AccessDeniedError, "The Hub has disabled the repository", "Its page on the Hub says why")
    row = row or ARCHIVED_ROWS.get(of_http.code or "") or _STATUSES.get(status)
    if row is None:
        return of_http
    return row.error(
        uri,
        status=status,
        code=code if code in _CODES else of_http.code,
        request_id=of_http.request_id,
        attempts=attempts,
        elapsed_s=elapsed_s,
    )


def of_the_hub(error: StorageError) -> StorageError:
    """Correct the text for a 404 without a code: the Hub itself would name the missing part."""
    if error.status == 404 and error.code is None:
        error.message, error.hint = NOT_OF_THE_HUB, "Check the endpoint, and the names: hf://owner/name@revision/path"
    return error


OF_HTTP = ("verify", "proxy", "proxy_auth", "timeout", "ssl")
DEFAULT_LIMITS = Limits()


def refuse_ignored(options: Mapping[str, Any]) -> None:
    """Refuse options that count for reads alone: huggingface_hub sends what is written, without them."""
    ignored = [name for name in OF_HTTP if options.get(name) is not None]
    if ignored:
        hint = "Leave it out, and set HTTPS_PROXY or SSL_CERT_FILE in the environment if you need them"
        raise OptionError(f"huggingface_hub sends what is written, without the option {ignored[0]}", hint=hint)


class HubClient:
    """Sends requests about one repository to one Hub, with one token."""

    def __init__(self, place: HfPath, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        _check_names(storage_options)
        check_types(storage_options, {"endpoint": TEXT, "private": FLAG})
        self._place = place
        self.endpoint = _endpoint(storage_options)  # URL of the Hub
        http = merged_options({name: storage_options[name] for name in OF_HTTP if name in storage_options})
        http["headers"] = headers = _token_headers(storage_options)
        self.token = headers.get("authorization", "").removeprefix("Bearer ") or None
        self.access = access_of(self.endpoint, http)  # certificates and proxy
        self.client = HttpClient(self.access, partial(refusal, has_token=bool(headers)), limits)  # sends the requests

    def commit(self, uri: str) -> str:
        """Request the current commit of the revision."""
        body, _ = self._answer_to(self._api(f"revision/{quote(self._place.revision, safe='')}"), uri)
        return commit_in(body, uri)

    def files(self, commit: str, folder: str, uri: str, *, prefix: str | None = None) -> Iterator[HubFile]:
        """Request the files directly in a folder; yield none if there is no such folder.

        Without a commit, they are those of a bucket, and `prefix` is the beginning of the names that are requested.
        """
        for entries in self._pages(commit, folder if prefix is None else prefix, uri):
            yield from files_in(entries, folder, uri)

    def folders(self, commit: str, folder: str, uri: str) -> list[str]:
        """Request the names of the folders directly in a folder; raises as `files`."""
        return folders_among(name for entries in self._pages(commit, folder, uri) for name in names_in(entries))

    def _pages(self, commit: str, folder: str, uri: str) -> Iterator[list[Any]]:
        """Request page after page of a folder."""
        url: str | None = self._tree(commit, folder)
        seen: set[str] = set()
        count, answered = ListingCount(self._limits, uri), answered_so_far()
        while url is not None:
            if url in seen:
                raise StorageError("The Hub lists the same page again", uri=uri, hint="Check the endpoint")
            seen.add(url)
            try:
                body, links = answered.once(self._answer_to, url, uri)
            except ObjectNotFoundError as error:
                if error.code == "EntryNotFound":
                    return
                raise
            entries = entries_in(body, uri)
            count.add(len(entries))
            yield entries
            url = next_page(links, url, self.endpoint, uri)

    def names(self, commit: str, folder: str, uri: str) -> list[str]:
        """Request the names of the first files and folders directly in a folder; names of folders end in a slash."""
        try:
            body, _ = self._answer_to(self._tree(commit, folder), uri)
        except ObjectNotFoundError as error:
            if error.code == "EntryNotFound" and not folder:  # the commit exists, and is empty
                return []
            raise
        return names_in(entries_in(body, uri))

    def start(self, commit: str, path: str) -> Hop:
        """Return the Hub's URL of a file, with headers; the Hub redirects it to the place of the bytes."""
        inner = "/".join(filter(None, ["resolve", commit, quote(path)]))
        url = f"{self.endpoint}/{self._place.resolve_prefix}{self._place.repository}/{inner}"
        return Hop(url, self.access.headers)

    def probe(self, commit: str, path: str, uri: str) -> Probe:
        """Request the first byte of a file where it is stored; raises as `probe_object`."""
        return probe_object(self.client, self.start(commit, path), uri)

    def _answer_to(self, url: str, uri: str) -> tuple[bytes, list[str]]:
        """Return the body of the answer of the API, and its ``Link`` headers."""
        try:
            return self._body(url, uri)
        except ObjectNotFoundError as error:
            of_the_hub(error)
            raise

    def _body(self, url: str, uri: str) -> tuple[bytes, list[str]]:
        def receive(response: Response) -> None:
            refuse_cut(response.read(self._limits.answer_bytes))

        response = self.client.open(Hop(url, self.access.headers), uri, {}, receive).response
        if parse_document(response.body) is None:
            what = f"{NOT_OF_THE_HUB}: {described(response.headers)}"
            raise StorageError(what, uri=uri, status=response.status, hint=f"{FOREIGN}: check the endpoint")
        links = response.headers.get("link")
        return response.body, [links] if links else []

    def _tree(self, commit: str, folder: str) -> str:
        return self._api("/".join(["tree", *filter(None, [commit, quote(folder, safe="")])]))

    def _api(self, rest: str) -> str:
        return f"{self.endpoint}/api/{self._place.kind}s/{self._place.repository}/{rest}"


def _check_names(storage_options: Mapping[str, Any]) -> None:
    """Refuse unknown options: a mistyped ``token`` would silently mean another login."""
    check_option_names("hf://", storage_options, ("token", "endpoint", "private", *OF_HTTP))


def _endpoint(options: Mapping[str, Any]) -> str:
    endpoint: str = (options.get("endpoint") or hub_endpoint()).rstrip("/")
    try:
        scheme, host, _ = origin_of(endpoint)
    except ValueError:  # a malformed address or port
        scheme = host = ""
    if scheme not in ("http", "https") or not host or "@" in endpoint or "?" in endpoint:
        raise OptionError("endpoint must be the http:// or https:// URL of a Hub, without user and query")
    return endpoint


def _token_headers(options: Mapping[str, Any]) -> dict[str, str]:
    # `build_hf_headers` is not used: for its user agent it sends a request to huggingface.co, which may be another Hub.
    if not isinstance(options.get("token"), (str, bool, type(None))) or not is_sendable(str(options.get("token"))):
        raise OptionError("token must be text, True for the saved login, or False for none")
    option = options.get("token")
    if isinstance(option, str):  # the text may come from a file or a form: strip line ends, and ignore a blank token
        option = option.strip() or None
    if option is False or (option is None and constants.HF_HUB_DISABLE_IMPLICIT_TOKEN):
        return {}
    token = option if isinstance(option, str) else saved_token()
    if option is True and token is None:
        raise CredentialsError("There is no saved login of the Hub", hint="Set HF_TOKEN, or run `hf auth login`")
    note_credential(token)
    return {"authorization": f"Bearer {token}"} if token is not None else {}
