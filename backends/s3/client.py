"""The client of one load from S3: signs requests and URLs, sends the requests, and judges the answers.

Guarantees: a request ends within its attempts and the time of `answer_times`. If an answer names another region, shows
that the clock of this machine is wrong, or refuses keys that have been replaced, the request is signed and sent again.
No redirect is followed. Options of the user are never overridden, changed in place or written back.

botocore is asked for what only it knows: keys that are not written down, and the place of a bucket under unusual
settings. Its import and its client take a tenth of a second each.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from time import monotonic
from typing import Any

from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.answer_values import TOLERANCE_S, clock_offset_s, refuse_cut
from streamer.backends.client.exchange import Response, send
from streamer.backends.client.retry import Attempts, whole_answer
from streamer.backends.s3.answers import RefusedError, refuse_foreign_listing
from streamer.backends.s3.login import AMAZON, Login, plain_login
from streamer.backends.s3.requests import CHECKSUM, UnsignedRequest, request_of, result_of
from streamer.backends.s3.signing import LONGEST_URL, UNSIGNED, Signer, host_of
from streamer.core.collector import collector_paused
from streamer.core.errors import RedirectError, StorageError
from streamer.core.imported import if_imported
from streamer.core.options.limits import Limits
from streamer.core.quoting import quoted
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.texts import note_credential
from streamer.core.store.sources import HttpSource

DEFAULT_LIMITS = Limits()
MOST_ROUNDS = 4  # another time, another region, other keys, and the answer
CHECK_SERVER = "Check endpoint_url: is it a server of S3's kind?"

_SEND = partial(send, ca_option="client_kwargs={'verify': '/path/ca.pem'}, AWS_CA_BUNDLE=/path/ca.pem")
_EXPIRED = frozenset({"ExpiredToken", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId"})
_OTHER_REGION = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"})
_REGION = re.compile(r"(?!-)(?![0-9]+\Z)[A-Za-z0-9-]{1,63}(?<!-)", re.ASCII)  # a part of a host name

if find_spec("s3fs") is None:  # the options are those of s3fs, and s3fs installs botocore
    raise ModuleNotFoundError("No module named 's3fs'", name="s3fs")


def _without_unsigned(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace ``config_kwargs={"signature_version": botocore.UNSIGNED}``, as for boto3, by ``anon=True``."""
    config, botocore = options.get("config_kwargs"), if_imported("botocore")
    if botocore is None or not isinstance(config, Mapping) or config.get("signature_version") is not botocore.UNSIGNED:
        return options
    left = {name: value for name, value in config.items() if name != "signature_version"}
    return {**options, "anon": True, "config_kwargs": left}


class S3Client:
    """Sends requests about objects, and signs URLs for them."""

    def __init__(self, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        storage_options = _without_unsigned(storage_options)
        self._options, self._limits, self._times = storage_options, limits, answer_times(limits)
        self._lock = threading.RLock()
        self._for_botocore: Mapping[str, Any] | None = None  # the options, if botocore has to find the login
        self._login = plain_login(storage_options, set_variables())
        self._clock_offset_s = 0.0  # of the server, ahead of this machine
        self._regions: dict[str, str] = {}  # of buckets, as answers named them
        self._signs_headers = False
        if self._login is None:
            self.endpoint, self.is_anonymous = self._leave_to_botocore()
        else:
            # The URL that requests are sent to; None for Amazon's own endpoint.
            self.endpoint = None if self._login.server == AMAZON else self._login.server
            self.is_anonymous = self._login.keys is None  # requests are not signed
        # The options have a key, which is not used because of ``anon=True``.
        self.has_unused_keys = self.is_anonymous and any(storage_options.get(each) for each in ("key", "secret"))

    def call(self, operation: str, bucket: str, *, is_checked: bool = False, **parameters: Any) -> dict[str, Any]:
        """Send a request, named like a method of botocore's client; return the same result as that method.

        If `is_checked`, the caller looks whether the answer confirms the checksum of the body, so that the body needs
        no signature.
        """
        began_s = monotonic()
        for _ in range(MOST_ROUNDS):
            login, signer = self._signer(bucket)
            wanted = request_of(operation, parameters, login.settings)
            source = _signed(login, signer, wanted, is_checked=is_checked)
            answer, attempts = self._answer_to(wanted, source, began_s, login.most_attempts)
            is_other_time = self._is_other_time(answer, signer)
            if 200 <= answer.status < 300 and answer.error_code is None:
                return _result_of(operation, answer, source.url)
            error = RefusedError(answer, attempts)
            is_of_time = is_other_time and 400 <= answer.status < 404
            if not is_of_time and not self._is_signed_wrong(bucket, wanted, error, signer):
                break
        raise error

    def get_source(self, bucket: str, lifetime_s: int, **parameters: Any) -> HttpSource:
        """Return the source for an object that is valid for `lifetime_s`; for anonymous use, it has no signature.

        A token of single sign-on may have several KiB. With it, a URL would be longer than many proxies accept.
        """
        login, signer = self._signer(bucket)
        wanted = request_of("get_object", parameters, login.settings)
        if not (self._signs_headers or login.signs_payload):
            url = signer.url(signer.place.url + wanted.path, wanted.headers, lifetime_s)
            if len(url) <= LONGEST_URL:
                return _source(login, url, wanted.headers)
        return _signed(login, signer, wanted)

    def sign_headers(self) -> None:
        """Sign in headers from now on, because the server does not accept signatures in URLs."""
        self._signs_headers = True

    def renew(self) -> None:
        """Find the login anew, so that the current credentials sign what follows."""
        with self._lock:
            self._login = None if self._for_botocore is not None else plain_login(self._options, set_variables())
            if self._login is None and self._for_botocore is None:
                self._leave_to_botocore()

    def takes_checksums(self) -> bool:
        """Say whether uploads may carry checksums that S3 does not require; some S3-compatible servers lack them."""
        return self._current().has_checksums

    def settings_identity(self) -> str | None:
        """Return a digest of the settings of all requests, "" without any; None if one of them has no plain value."""
        from streamer.core.store.identities import digest_of  # noqa: PLC0415 (a plain load compares none)

        settings = self._current().settings
        return (digest_of(settings) or None) if settings else ""

    def is_encrypted(self, bucket: str) -> bool:
        """Say whether requests go over TLS."""
        return self._signer(bucket)[1].place.url.startswith("https:")

    def login_identity(self) -> str:
        """Return what endpoint and login add to the identity of an object; empty if another process cannot have them.

        Amazon has one owner for each name of a bucket in a partition, so every login that may read gets the same bytes.
        Other servers may have tenants.
        """
        from streamer.backends.login_state import login_identity  # noqa: PLC0415 (a plain load compares none)
        from streamer.core.store.identities import digest_of  # noqa: PLC0415

        login = self._current()
        if not login.server.startswith("http"):
            return digest_of(login.server)
        keys = login.keys and login.keys()
        of_keys = login_identity(self._options) if keys and keys.token else (keys and keys.access_key) or "anonymous"
        return of_keys and digest_of(login.server, of_keys)

    def _answer_to(
        self, wanted: UnsignedRequest, source: HttpSource, began_s: float, most_attempts: int
    ) -> tuple[Response, Attempts]:
        """Return the whole answer, of any status, and the attempts that it took; a document that is cut is retried."""
        how: dict[str, Any] = {"most_bytes": self._limits.answer_bytes, "most": most_attempts, "began_s": began_s}
        check = refuse_cut if wanted.is_document else None
        return whole_answer(source, self._times, None, wanted.method, wanted.body, check=check, sender=_SEND, **how)

    def _current(self) -> Login:
        """Return the login; botocore's is found when it is first needed, because that may fail."""
        with self._lock:
            if self._login is None:
                with collector_paused():
                    from streamer.backends.s3.botocore_login import shared_login  # noqa: PLC0415 (see above)
                self._login = shared_login(self._for_botocore or {}).login()
            return self._login

    def _leave_to_botocore(self) -> tuple[str | None, bool]:
        """Let botocore find the login; return the endpoint, and whether requests are anonymous."""
        with collector_paused():
            from streamer.backends.s3.options import endpoint_of, filled_options, times_of  # noqa: PLC0415 (see above)
        environment = set_variables()
        options = filled_options(self._options, environment)
        with self._lock:
            self._for_botocore, self._login, self._times = options, None, times_of(options, self._limits)
        return endpoint_of(options, environment), bool(options.get("anon"))

    def _signer(self, bucket: str) -> tuple[Login, Signer]:
        login, region = self._current(), self._regions.get(bucket)
        place = login.place_of(bucket, region)
        if place is None:
            self._leave_to_botocore()
            login = self._current()
            place = login.place_of(bucket, region)
        if place is None:
            raise AssertionError("botocore finds a place for each bucket, or raises")
        return login, Signer(place, login.keys and login.keys(), self._clock_offset_s)

    def _is_signed_wrong(self, bucket: str, wanted: UnsignedRequest, error: RefusedError, signer: Signer) -> bool:
        """Say whether a refused request may succeed for another region, or with other keys."""
        region = _region_in(wanted, error)
        if region is not None:
            self._regions[bucket] = region
            return region != signer.place.region
        if error.code not in _EXPIRED or signer.keys is None:
            return False
        if self._signer(bucket)[1].keys == signer.keys:  # no other thread has renewed them
            self._forget_keys()
        return self._signer(bucket)[1].keys != signer.keys

    def _is_other_time(self, answer: Response, signer: Signer) -> bool:
        """Say whether the server has another time than the signature; later signatures are made at its time."""
        offset_s = clock_offset_s(answer.headers.get("date"), time.time())
        if offset_s is not None and abs(offset_s - self._clock_offset_s) > TOLERANCE_S:
            self._clock_offset_s = offset_s
        return abs(self._clock_offset_s - signer.offset_s) > TOLERANCE_S

    def _forget_keys(self) -> None:
        """Look up the keys anew: they ended before the time that their provider named, or it named none."""
        if forget := getattr(self._options.get("session"), "forget_keys", None):  # the session is that of a plug-in
            forget()
        if "botocore.session" in sys.modules:
            from streamer.backends.s3.botocore_login import forget_logins  # noqa: PLC0415 (see above)

            forget_logins()
        self.renew()


def _signed(login: Login, signer: Signer, wanted: UnsignedRequest, *, is_checked: bool = False) -> HttpSource:
    """Return the source for a request, with its signature in headers."""
    url, signs_payload = signer.place.url + wanted.path, login.signs_payload
    if signs_payload is None:
        signs_payload = CHECKSUM not in wanted.headers or not (is_checked or url.startswith("https:"))
    payload = sha256(wanted.body).hexdigest() if signs_payload and signer.keys else UNSIGNED
    if signer.keys:
        note_credential(signer.keys.token)  # the only credential that is sent as it is, so a server may repeat it
    return _source(login, url, signer.headers(wanted.method, url, wanted.headers, payload))


def _source(login: Login, url: str, headers: Mapping[str, str]) -> HttpSource:
    certificate, key = login.client_cert
    return HttpSource(
        url,
        {**headers, **host_of(url), **login.headers},
        ca_file=login.ca_file,
        proxy=login.proxies.get(url.partition(":")[0]),
        client_cert=certificate,
        client_key=key,
    )


def _result_of(operation: str, answer: Response, url: str) -> dict[str, Any]:
    if operation == "list_objects_v2":
        refuse_foreign_listing(url, answer)
    result = result_of(operation, answer)
    if result is None:
        raise StorageError("S3's answer is malformed", hint=CHECK_SERVER)
    return result


def _region_in(wanted: UnsignedRequest, error: RefusedError) -> str | None:
    """Return the region that a refusal names for a bucket; None if the refusal is no redirect, or names none."""
    is_of_head = wanted.method == "HEAD" and error.status == 400
    if not (error.status in (301, 302, 307) or is_of_head or error.code in _OTHER_REGION):
        return None
    region = error.document.get("Region") or error.headers.get("x-amz-bucket-region")
    if region and not _REGION.fullmatch(region):
        what = f"The S3 endpoint names a region that cannot be one: {quoted(region)}"
        raise RedirectError(what, hint=CHECK_SERVER)
    return region or None
