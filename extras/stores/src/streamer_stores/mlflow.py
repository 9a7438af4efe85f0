"""``models:/name@alias`` and ``models:/name/version``: models of an MLflow registry, by their own storages.

Guarantees: an alias is looked up once for a store, which then reads that version alone. The login goes to the tracking
server alone.
https://mlflow.org/docs/latest/rest-api.html
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from streamer.plugins import (
    HttpSource,
    Limits,
    ObjectInfo,
    ObjectNotFoundError,
    StorageError,
    Store,
    UsageError,
    check_option_names,
    hookimpl,
    open_store,
    send_request,
)
from streamer_stores import checked_token, with_login_hint

_MODEL = re.compile(r"models:/{1,2}([^/@?#:]+)(?:@([^/@?#]+)|/(\d+))(?:/(.*))?", re.IGNORECASE)
_API = "/api/2.0/mlflow"
_LOGIN = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, and check its rights"


@hookimpl
def streamer_open_store(uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store:
    """Open the storage of a model's artifacts; `storage_options` are that storage's."""
    match = _MODEL.fullmatch(uri)
    if match is None or ".." in (match[4] or "").split("/"):
        hint = "Write models:/name@alias or models:/name/7, and a path after it if needed"
        raise UsageError("This names no version of a model", uri=uri, hint=hint)
    server = _Tracking(uri, limits)
    name, version = match[1], match[3]
    if version is None:
        found = server.get("registered-models/alias", {"name": name, "alias": match[2]}).get("model_version")
        version = found.get("version") if isinstance(found, dict) else None
    place = server.get("model-versions/get-download-uri", {"name": name, "version": str(version)}).get("artifact_uri")
    if not version or not isinstance(place, str):
        raise server.malformed()
    place, path = place.rstrip("/"), match[4] or ""
    scheme, _, rest = place.partition(":")
    if scheme == "mlflow-artifacts":
        check_option_names("models:/", storage_options, [])
        if urlsplit(place).netloc not in ("", urlsplit(server.url).netloc):
            raise UsageError("The artifacts are at another server", uri=uri, hint="Set MLFLOW_TRACKING_URI to it")
        return _Artifacts(server, f"{urlsplit(place).path.strip('/')}/{path}".strip("/"), limits)
    if scheme == "models" or not (place.startswith("/") or rest.startswith("//")):
        raise UsageError(f"The artifacts are in a storage of kind {scheme}, which cannot be read", uri=uri)
    return open_store(f"{place}/{path}" if path else place, storage_options, limits=limits)


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Return the kind of source of most artifacts."""
    return HttpSource


class _Tracking:
    """The tracking server of the environment, with its login."""

    def __init__(self, uri: str, limits: Limits) -> None:
        self.uri, self._limits = uri, limits
        given = os.environ.get("MLFLOW_REGISTRY_URI") or os.environ.get("MLFLOW_TRACKING_URI") or ""
        self.url = given.rstrip("/")
        if urlsplit(self.url).scheme not in ("http", "https") or "@" in urlsplit(self.url).netloc:
            hint = "Set MLFLOW_TRACKING_URI=https://host, and the login in MLFLOW_TRACKING_USERNAME and _PASSWORD"
            raise UsageError("There is no URL of a tracking server without a login in it", uri=uri, hint=hint)
        if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("1", "true"):
            hint = "Name its certificate in MLFLOW_TRACKING_SERVER_CERT_PATH"
            raise UsageError("MLFLOW_TRACKING_INSECURE_TLS is set, and certificates are checked", uri=uri, hint=hint)
        self.ca_file = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None
        user, token = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "TOKEN"))
        token = checked_token(token or "", "the tracking server")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        if user:
            login = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
            self.headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}

    def get(self, path: str, query: Mapping[str, str], api: str = _API) -> dict[str, Any]:
        """Return the document of a path of the API."""
        source = HttpSource(f"{self.url}{api}/{path}?{urlencode(query)}", self.headers, ca_file=self.ca_file)
        answer = send_request(source, self.uri, limits=self._limits)
        if answer.status == 404 or (answer.status == 400 and b"not found" in answer.body):
            hint = "Check the name, and the alias or version, and MLFLOW_TRACKING_URI"
            raise ObjectNotFoundError("The registry has no such model or version", uri=self.uri, hint=hint)
        if answer.status != 200:
            error = with_login_hint(answer.error(self.uri), _LOGIN)
            if api == _API and answer.status in (429, *range(500, 600)):  # a URL is not open yet, so nothing waits
                error.hint = "Try again when the server works: looking up a version does not wait for it"
            raise error
        try:
            document = json.loads(answer.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise self.malformed()
        return document

    def malformed(self) -> StorageError:
        hint = "Check MLFLOW_TRACKING_URI, and the proxies on the way to it"
        return StorageError("The answer is not that of a tracking server", uri=self.uri, hint=hint)


class _Artifacts:
    """Artifacts that the tracking server hands on, as objects of a web server. A path is that of MLflow."""

    def __init__(self, server: _Tracking, root: str, limits: Limits) -> None:
        self._server, self.root, self._limits = server, root, limits
        self.server = "{0.scheme}://{0.netloc}".format(urlsplit(server.url))
        self._options = {"headers": server.headers} | ({"verify": server.ca_file} if server.ca_file else {})

    def info(self, path: str) -> ObjectInfo:
        store = self._store(path)
        try:
            return replace(store.info(store.root), path=path)
        except ObjectNotFoundError as error:
            error.hint = "Check the path in the artifacts of the model"
            raise
        except StorageError as error:
            with_login_hint(error, _LOGIN)
            raise

    def find(self, prefix: str) -> list[ObjectInfo]:
        return [self.info(path) for path, is_folder in self._listed(prefix) if not is_folder]

    def folders(self, prefix: str) -> list[str]:
        return [path.rpartition("/")[2] for path, is_folder in self._listed(prefix) if is_folder]

    def source(self, info: ObjectInfo) -> Any:
        store = self._store(info.path)
        return store.source(replace(info, path=store.root))

    def close(self) -> None:
        """Do nothing: a request is closed after its answer."""

    def _store(self, path: str) -> Store:
        url = f"{self._server.url}/api/2.0/mlflow-artifacts/artifacts/{quote(path)}"
        return open_store(url, self._options, limits=self._limits)

    def _listed(self, prefix: str) -> list[tuple[str, bool]]:
        files = self._server.get("artifacts", {"path": prefix}, "/api/2.0/mlflow-artifacts").get("files", [])
        try:
            names = {str(each["path"]).rpartition("/")[2]: bool(each.get("is_dir")) for each in files}
        except (KeyError, TypeError, AttributeError):
            raise self._server.malformed() from None
        return sorted((f"{prefix}/{name}".lstrip("/"), is_folder) for name, is_folder in names.items())
