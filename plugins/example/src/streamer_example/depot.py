"""``depot://host:port/folder``: an artifact server that lists as JSON and gives out signed, short-lived URLs."""

import json
import urllib.error
import urllib.parse
import urllib.request

from streamer.plugins import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    HttpSource,
    HttpStatusError,
    ObjectInfo,
    ObjectNotFoundError,
    check_option_names,
    hookimpl,
)

ERRORS = {401: CredentialsError, 403: AccessDeniedError, 404: ObjectNotFoundError}
TIMEOUT_S = 10


@hookimpl
def streamer_open_store(uri, storage_options):
    check_option_names("depot://", storage_options, ["token"])
    return DepotStore(uri, storage_options.get("token", ""))


@hookimpl
def streamer_source_kind():
    return HttpSource


class DepotStore:
    def __init__(self, uri, token):
        self._server, _, path = uri.removeprefix("depot://").partition("/")
        self._token = token
        self.root = path.strip("/")

    def info(self, path):
        signed = self._ask("sign", path)
        return ObjectInfo(path, self._uri(path), size_bytes=signed["size"], version=signed["etag"])

    def find(self, prefix):
        listed = self._ask("list", prefix)
        found = [ObjectInfo(e["path"], self._uri(e["path"]), size_bytes=e["size"], version=e["etag"]) for e in listed]
        return sorted(found, key=lambda info: info.path)

    def source(self, info):
        signed = self._ask("sign", info.path)
        return HttpSource(
            url=f"http://{self._server}{signed['url']}",
            version=info.version,
            expires_at_s=signed["expires_at_s"],
            refresh=lambda: self.source(info),
        )

    def close(self):
        pass

    def _ask(self, question, path):
        url = f"http://{self._server}/api/{question}?{urllib.parse.urlencode({'path': path})}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._token}"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            cls = ERRORS.get(error.code, HttpStatusError)
            raise cls(f"The depot refuses to {question} this path", uri=self._uri(path), status=error.code) from error
        except OSError as error:
            raise ConnectError("The depot cannot be reached", uri=self._uri(path)) from error

    def _uri(self, path):
        return f"depot://{self._server}/{path}"
