"""``s3express://bucket--zone--x-s3/…``: directory buckets of S3 Express One Zone, by the backend of ``s3://``.

That backend finds the zonal host, signs and sends. Here are the keys of its signatures: those of a session for one
bucket, which `CreateSession` gives for five minutes. Guarantees: a session is renewed before it ends, and read-only if
the login may not write. An upload is never resumed: uploads of these buckets are listed by folder, not by name.
https://docs.aws.amazon.com/AmazonS3/latest/API/API_CreateSession.html
"""

from __future__ import annotations

import html
import os
import re
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, ProfileNotFound
from botocore.session import Session

from streamer.plugins import (
    CredentialsError,
    HttpSource,
    Limits,
    ObjectInfo,
    ObjectNotFoundError,
    StorageError,
    Store,
    UsageError,
    digest_of,
    hookimpl,
    open_store,
    send_request,
)
from streamer_stores import with_login_hint

EARLY_S = 60.0  # a session is renewed this long before its end
_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]*--(?P<zone>[a-z0-9-]+)--x-s3")
_FIELD = re.compile(r"<(AccessKeyId|SecretAccessKey|SessionToken|Expiration)>([^<]+)</")
_KEYS = ("key", "secret", "token", "profile")
_ADDRESS = re.compile(r"[\d.]+|.*:.*|localhost")


@hookimpl
def streamer_open_store(uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store:
    """Open the bucket of `uri`, with the options of ``s3://``."""
    bucket = uri.partition("://")[2].partition("/")[0]
    match = _BUCKET.fullmatch(bucket)
    if match is None:
        hint = "Its name ends in --zone--x-s3; other buckets are read by s3://"
        raise UsageError("This is not the URL of a directory bucket", uri=uri, hint=hint)
    if "versionId=" in uri:
        raise UsageError("Directory buckets keep no versions", uri=uri, hint="Leave ?versionId= out")
    try:
        session = ExpressSession(bucket, match["zone"], storage_options, limits)
    except BotoCoreError as error:
        fault = "has no such profile" if isinstance(error, ProfileNotFound) else "cannot be read"
        hint = "Check the option profile, AWS_PROFILE, ~/.aws/config and ~/.aws/credentials"
        raise CredentialsError(f"The AWS configuration {fault}", uri=uri, hint=hint) from error
    options = {name: value for name, value in storage_options.items() if name not in _KEYS}
    config = {**(storage_options.get("config_kwargs") or {}), "signature_version": "v4-s3express"}
    client = {**(storage_options.get("client_kwargs") or {}), "region_name": session.region}
    options |= {"session": session, "config_kwargs": config, "client_kwargs": client}
    if session.endpoint:
        options["endpoint_url"] = session.endpoint
    return DirectoryBucket(open_store(f"s3://{uri.partition('://')[2]}", options, limits=limits), session)


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Return the kind of source: these objects are read over HTTP."""
    return HttpSource


class DirectoryBucket:
    """A store of ``s3://`` without `resume_upload`, whose login other processes can compare."""

    def __init__(self, store: Store, session: ExpressSession) -> None:
        self._store, self.root, self._session = store, store.root, session

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of endpoint and name, and of the login if the endpoint is not Amazon's own."""
        endpoint = self._session.endpoint
        login = self._session.login() if endpoint else None
        return digest_of("s3express", endpoint or "", info.path, login.access_key if login else "")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("resume_upload", "join_upload"):
            raise AttributeError(name)
        return getattr(self._store, name)


class ExpressSession(Session):  # type: ignore[misc]  # botocore has no types
    """A session of botocore whose credentials are those of `CreateSession`."""

    def __init__(self, bucket: str, zone: str, options: Mapping[str, Any], limits: Limits) -> None:
        super().__init__(profile=options.get("profile"))
        self._limits, self._bucket, self._lock = limits, bucket, threading.Lock()
        client = options.get("client_kwargs") or {}
        named = [client.get("region_name"), (options.get("config_kwargs") or {}).get("region_name")]
        named += map(os.environ.get, ("AWS_DEFAULT_REGION", "AWS_REGION"))
        self.region = str(next(filter(None, named), None) or self.get_config_variable("region") or "us-east-1")
        verify = client.get("verify") or self.get_config_variable("ca_bundle")
        self._ca_file = verify if isinstance(verify, str) else None
        self._login = None
        if options.get("key"):
            self._login = Credentials(options["key"], options.get("secret", ""), options.get("token"))
        self.endpoint = options.get("endpoint_url") or client.get("endpoint_url") or self._configured_endpoint()
        self._url = _url_of(self.endpoint or f"https://s3express-{zone}.{self.region}.amazonaws.com", bucket)
        self._mode = "ReadWrite"
        self._keys: ReadOnlyCredentials | None = None
        self._ends_at_s = 0.0  # by time.monotonic

    def get_credentials(self) -> ExpressSession:
        """Return what gives the keys."""
        return self

    def login(self) -> Any:
        """Return the credentials that sessions are made with, or None."""
        return self._login or super().get_credentials()

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return the keys of the current session, which is renewed if it ends soon."""
        with self._lock:
            if self._keys is None or time.monotonic() > self._ends_at_s - EARLY_S:
                self._create()
            assert self._keys is not None  # `_create` sets them, or raises
            return self._keys

    def forget_keys(self) -> None:
        """Make the next signature begin a new session: the backend of ``s3://`` calls this if S3 refuses the keys."""
        with self._lock:
            self._keys = None

    def _configured_endpoint(self) -> str | None:
        """Return the endpoint of the variables or the profile, in the order of botocore."""
        if self.get_config_variable("ignore_configured_endpoint_urls"):
            return None
        profile = self.get_scoped_config()
        services = self.full_config.get("services", {}).get(profile.get("services"), {})
        of_s3 = services.get("s3")
        named = of_s3.get("endpoint_url") if isinstance(of_s3, dict) else None
        variables = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return variables or named or profile.get("endpoint_url") or None

    def _create(self) -> None:
        uri = f"s3express://{self._bucket}"
        login = self.login()
        if login is None:
            hint = "Give key and secret, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise CredentialsError("There are no credentials for the session of the bucket", uri=uri, hint=hint)
        frozen = login.get_frozen_credentials()
        for mode in dict.fromkeys((self._mode, "ReadOnly")):
            request = AWSRequest("GET", f"{self._url}?session", headers={"x-amz-create-session-mode": mode})
            S3SigV4Auth(frozen, "s3express", self.region).add_auth(request)
            headers = {name: str(value) for name, value in request.headers.items()}
            began_s = time.monotonic()
            answer = send_request(HttpSource(request.url, headers, ca_file=self._ca_file), uri, limits=self._limits)
            if answer.status != 403:  # another fault would make a session that cannot write
                break
        if answer.status != 200:
            error = answer.error(uri)
            if isinstance(error, ObjectNotFoundError):
                error.message, error.hint = "There is no such bucket", "Check its name and the region"
            raise with_login_hint(error, "Check the credentials, and that they may do s3express:CreateSession")
        found = {name: html.unescape(value) for name, value in _FIELD.findall(answer.body.decode(errors="replace"))}
        try:
            keys = ReadOnlyCredentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
            ends = datetime.fromisoformat(found["Expiration"].replace("Z", "+00:00"))
            server_s = parsedate_to_datetime(answer.headers["date"]).timestamp()  # this machine's clock may be wrong
        except (KeyError, ValueError):
            what = "The answer to CreateSession is not that of S3"
            raise StorageError(what, uri=uri, hint="Check endpoint_url, and the proxies on the way to it") from None
        self._keys, self._mode = keys, mode
        self._ends_at_s = began_s + ends.timestamp() - server_s


def _url_of(endpoint: str, bucket: str) -> str:
    """Return the URL of a bucket as botocore makes it: the bucket is in the host, unless that is an address."""
    parts = urlsplit(endpoint.rstrip("/"))
    if _ADDRESS.fullmatch(parts.hostname or ""):
        return f"{parts.geturl()}/{quote(bucket)}"
    return f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path}/"
