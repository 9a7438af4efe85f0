"""Wraps a store: requests are retried while the server is unavailable, and errors contain no secrets.

Its answers are noted for other processes of a group, or recalled from one of them. Refusals that a search for a
checkpoint goes on from are answers, too: there is no such object, and listing is denied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from streamer import _native
from streamer.core.errors import AccessDeniedError, ChangedError, CredentialsError, ObjectNotFoundError, StorageError
from streamer.core.findings import Findings
from streamer.core.outages.outage_waits import OutageWaits, answered_so_far
from streamer.core.secrets.texts import SecretTexts
from streamer.core.store.digests import NoDigest, ObjectDigest
from streamer.core.store.identities import digest_of, stable_url
from streamer.core.store.sources import (
    DigestingStore,
    FolderStore,
    HttpSource,
    IdentifyingStore,
    ObjectInfo,
    PythonSource,
    RemoteStore,
    Source,
    Store,
)
from streamer.core.store.uploads import (
    CommittingStore,
    RereadingUpload,
    ResumingStore,
    SharedUpload,
    SharingStore,
    Upload,
    UploadingStore,
)
from streamer.plugins.route import Route

if TYPE_CHECKING:
    from streamer.core.store.own_objects import OwningUpload

_REFUSALS: dict[str, type[StorageError]] = {each.__name__: each for each in (ObjectNotFoundError, AccessDeniedError)}


class StoreFindings:
    """See the module's docstring."""

    def __init__(self, findings: Findings | None, server: str, origin: str) -> None:
        self._findings, self._server, self._origin = findings if origin else None, server, origin

    def info(self, path: str, ask: Callable[[], ObjectInfo]) -> ObjectInfo:
        """Return the description of an object; `ask` asks the store."""
        return self._answer("info", path, lambda: [ask()])[0]

    def find(self, prefix: str, ask: Callable[[], list[ObjectInfo]]) -> list[ObjectInfo]:
        """Return the objects in a folder; `ask` asks the store."""
        return self._answer("find", prefix, ask)

    def _answer(self, method: str, path: str, ask: Callable[[], list[ObjectInfo]]) -> list[ObjectInfo]:
        if self._findings is None:
            return ask()
        key = (method, self._server, self._origin, path)
        known = self._findings.recall(key)
        if known is not None:
            return _recalled(known)
        try:
            infos = ask()
        except StorageError as error:
            if type(error) in _REFUSALS.values():
                refusal = {"message": error.message, "uri": error.uri, "hint": error.hint, "status": error.status}
                self._findings.note(key, {"refusal": type(error).__name__, **refusal})
            raise
        self._findings.note(key, [[each.path, each.uri, each.size_bytes, each.version, each.is_weak] for each in infos])
        return infos


def _recalled(known: Any) -> list[ObjectInfo]:
    if isinstance(known, dict):
        refusal = dict(known)
        raise _REFUSALS[refusal.pop("refusal")](refusal.pop("message"), **refusal)
    # The process that noted them has waited until young versions were settled.
    return [
        ObjectInfo(path, uri, size_bytes, version, math.inf if is_weak else 0.0)
        for path, uri, size_bytes, version, is_weak in known
    ]


LISTINGS = 3  # a folder is rarely written during each of them
UNLISTED = "Listing was refused: without that permission, name a file or an index"

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def waiting(
    store: Store,
    uri: str,
    options: Mapping[str, Any] | None,
    waits: OutageWaits,
    secrets: SecretTexts,
    *,
    findings: Findings | None = None,
) -> Store:
    """Wrap a store."""
    server = store.server if isinstance(store, RemoteStore) else _server_of(uri)
    abilities = tuple(ability for protocol, ability in _ABILITIES.items() if isinstance(store, protocol))
    origin = digest_of(stable_url(uri), options or {})
    found = StoreFindings(findings, server, origin)
    route = Route(server, options)
    wrapped: Store = _waiting_class(abilities)(store, route, server, waits, secrets, found=found, origin=origin)
    return wrapped


class _WaitingStore:
    def __init__(
        self,
        store: Any,
        route: Route,
        server: str,
        waits: OutageWaits,
        secrets: SecretTexts,
        *,
        found: StoreFindings,
        origin: str,
    ) -> None:
        self._store, self.server, self._waits, self._secrets = store, server, waits, secrets
        self.origin = origin  # for `identity_of`
        self._route, self._found = route, found
        self.root: str = store.root

    def info(self, path: str) -> ObjectInfo:
        return self._found.info(path, lambda: self._ask(lambda: self._store.info(path)))

    def find(self, prefix: str) -> list[ObjectInfo]:
        return self._found.find(prefix, lambda: self._ask_to_list(lambda: _each_once(self._store, prefix)))

    def peek(self, prefix: str) -> list[str]:
        if not hasattr(self._store, "peek"):
            raise NotImplementedError  # an empty list would mean that the folder is empty
        names: list[str] = self._ask(lambda: self._store.peek(prefix))
        return names

    def source(self, info: ObjectInfo) -> Source:
        source: Source = self._ask(lambda: self._store.source(info))
        if isinstance(source, HttpSource) and _is_at(source.url, self.server):
            # The engine then also waits for this server, if its requests take the same proxy.
            _native.Lookup(source.url.encode(), source.proxy or "").note_answer()
        return _guarded(source, self._secrets)

    def close(self) -> None:
        self._store.close()

    def _ask(self, request: Callable[[], Answer]) -> Answer:
        guarded = _without_secrets(self._secrets, _noting(self._route, request))
        return self._waits.ask(self.server, guarded, self._route.lookup())

    def _ask_to_list(self, request: Callable[[], Answer]) -> Answer:
        """Call `_ask`; if access is denied, add the hint that listing needs a permission, and what works without it."""
        try:
            return self._ask(request)
        except CredentialsError:  # the credentials are invalid for every request
            raise
        except AccessDeniedError as error:
            error.hint = f"{UNLISTED}. {error.hint}" if error.hint else UNLISTED
            raise


def _each_once(store: Store, prefix: str) -> list[ObjectInfo]:
    """List a folder, each object once; if an object has two descriptions, it was replaced meanwhile: list again."""
    for _ in range(LISTINGS):
        infos: dict[str, ObjectInfo] = {}
        twice = [info for info in store.find(prefix) if infos.setdefault(info.path, info) != info]
        if not twice:
            return list(infos.values())
        answered_so_far().forget()
    raise ChangedError(
        "the listing names the object twice, with different sizes or versions",
        uri=twice[0].uri,
        hint="It is being replaced: try again when nobody writes there",
    )


class _WaitingUpload:
    """An upload whose requests are retried one by one."""

    def __init__(self, upload: OwningUpload, ask: Callable[[Callable[[], None]], None]) -> None:
        self._upload, self._ask = upload, ask
        self.parallel_parts, self.needs_equal_parts = upload.parallel_parts, upload.needs_equal_parts
        if isinstance(upload, RereadingUpload):
            self.read = lambda *how: ask(lambda: upload.read(*how))

    def send(self, offset_bytes: int, part: memoryview) -> None:
        self._ask(lambda: self._upload.send(offset_bytes, part))

    def finish(self) -> None:
        self._ask(self._upload.finish)

    def abort(self) -> None:
        self._ask(self._upload.abort)

    def confirm(self) -> None:
        self._ask(self._upload.confirm)

    def may_stand(self) -> bool:
        return self._upload.may_stand()

    def withdraw(self) -> None:
        self._ask(self._upload.withdraw)

    def share(self) -> Any:
        return self._upload.share() if isinstance(self._upload, SharedUpload) else None

    def sent(self) -> Any:
        assert isinstance(self._upload, SharedUpload)
        return self._upload.sent()

    def add(self, sent: Any) -> None:
        assert isinstance(self._upload, SharedUpload)
        self._upload.add(sent)


class _Ability:
    _store: Any
    _ask: Callable[..., Any]
    _ask_to_list: Callable[..., Any]


class _Digests(_Ability):
    """Added to the wrapper of a `DigestingStore`. The next classes do the same for other protocols of stores."""

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        digest: ObjectDigest | NoDigest = self._ask(lambda: self._store.digest(info))
        return digest


class _Folders(_Ability):
    def folders(self, prefix: str) -> list[str]:
        names: list[str] = self._ask_to_list(lambda: self._store.folders(prefix))
        return names


class _Identities(_Ability):
    _secrets: SecretTexts
    _route: Route

    def identity(self, info: ObjectInfo) -> str:
        with self._secrets.masking_errors():
            identity: str = self._store.identity(info)
        proxy = self._route.answering_proxy()
        return digest_of(identity, proxy) if identity and proxy else identity


class _Uploads(_Ability):
    def begin_upload(self, path: str, *facts: Any) -> OwningUpload:
        upload: Upload = self._ask(lambda: self._store.begin_upload(path, *facts))
        return _owning(upload, self._store, path, facts, self._ask)

    def remove(self, path: str) -> None:
        self._ask(lambda: self._store.remove(path))


class _Resumes(_Ability):
    def resume_upload(self, path: str, *facts: Any) -> OwningUpload:
        upload: Upload = self._ask(lambda: self._store.resume_upload(path, *facts))
        return _owning(upload, self._store, path, facts, self._ask)


class _Shares(_Ability):
    def join_upload(self, path: str, *facts: Any) -> OwningUpload:
        return _owning(self._store.join_upload(path, *facts), self._store, path, [None], self._ask)


class _Commits(_Ability):
    def prepare(self) -> None:
        self._ask(self._store.prepare)

    def commit(self) -> None:
        self._ask(self._store.commit)


def _owning(upload: Upload, store: Any, path: str, facts: Sequence[Any], ask: Callable[..., Any]) -> OwningUpload:
    from streamer.core.store.versioned_uploads import owning  # noqa: PLC0415 (a load needs none of it)

    return _WaitingUpload(owning(upload, store, path, facts[-1]), ask)


_ABILITIES: dict[Any, type] = {
    DigestingStore: _Digests,
    FolderStore: _Folders,
    IdentifyingStore: _Identities,
    UploadingStore: _Uploads,
    ResumingStore: _Resumes,
    SharingStore: _Shares,
    CommittingStore: _Commits,
}


@lru_cache(maxsize=32)  # the number of combinations
def _waiting_class(abilities: tuple[type, ...]) -> type[Any]:
    return type(_WaitingStore.__name__, (*abilities, _WaitingStore), {})


def _noting(route: Route, request: Callable[[], Answer]) -> Callable[[], Answer]:
    def noted() -> Answer:
        try:
            return request()
        except StorageError as error:
            route.note_failure(error)
            raise

    return noted


def _guarded(source: Source, secrets: SecretTexts) -> Source:
    """Wrap the functions of a source that are called during the read, so that their errors contain no secrets."""
    if isinstance(source, HttpSource) and source.refresh is not None:
        return replace(source, refresh=_without_secrets(secrets, source.refresh))
    if isinstance(source, PythonSource):
        confirm = source.confirm and _without_secrets(secrets, source.confirm)
        return replace(source, read_into=_without_secrets(secrets, source.read_into), confirm=confirm)
    return source


def _without_secrets(secrets: SecretTexts, function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    @wraps(function)
    def guarded(*arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        with secrets.masking_errors():
            return function(*arguments, **named)

    return guarded


def _server_of(uri: str) -> str:
    """Return scheme, host and port of the last URL of a chain."""
    parts = urlsplit(uri.rpartition("::")[2])
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _is_at(url: str, server: str) -> bool:
    """Whether a URL is on this server, or on a sub-domain of it (a bucket)."""
    host, server_host = urlsplit(url).netloc.rpartition("@")[2], urlsplit(server).netloc
    return bool(server_host) and (host == server_host or host.endswith(f".{server_host}"))
