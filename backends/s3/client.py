"""The S3 control plane: the botocore client of one s3fs instance, called on the event loop of that.

Guarantees: options of the user (arguments, fsspec configuration, AWS environment) are never overridden, changed in
place or written back; a request ends within three attempts and the time of `answer_times`; where the clock of this
machine is wrong, signatures are made at the server's time. Refuses unverified TLS, and follows no redirect. The methods
of s3fs are not called: its listing cache may be stale, and its own retries would multiply botocore's by five.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, InvalidRegionError, ReadTimeoutError
from botocore.session import Session
from fsspec.asyn import sync
from s3fs import S3FileSystem

from streamer.backends.client.answer_times import AnswerTimes, answer_times
from streamer.backends.client.bounded_answers import TooSlowError, allowing
from streamer.backends.client.option_types import CA_FILE, MAPPING, NUMBER, TEXT, Kinds, check_types
from streamer.backends.client.unreachable import is_unknown_host
from streamer.backends.fsspec.instances import shared
from streamer.backends.fsspec.options import configured_options, names_of_arguments
from streamer.backends.metadata_servers import ask_aws_directly
from streamer.backends.option_names import check_option_names
from streamer.backends.private_names.botocore import request_signer
from streamer.backends.private_names.s3fs import client_creator, give_session
from streamer.backends.s3.clock import TOLERANCE_S, clock_offset_s, sign_at_offset
from streamer.backends.s3.errors import MalformedAnswerError
from streamer.backends.s3.foreign_answers import ForeignAnswerError, refuse_foreign_listings
from streamer.backends.s3.presigning import presigned_get
from streamer.backends.s3.redirects import follow_no_redirects
from streamer.backends.s3.sessions import new_session
from streamer.core.discovery.imports import collector_paused
from streamer.core.errors import OptionError
from streamer.core.options.limits import Limits
from streamer.core.secrets.options import SecretOptions
from streamer.core.secrets.texts import note_credential

__all__ = ["S3Client", "filled_options"]

DEFAULT_LIMITS = Limits()
# The first attempt, one for a connection that was closed while idle, one for a server that restarts.
RETRIES = {"mode": "standard", "total_max_attempts": 3}

# Exceptions with an answer that are not about its text; any other means that botocore could not parse it.
_NOT_OF_TEXT = (BotoCoreError, ClientError, ForeignAnswerError, RecursionError, asyncio.TimeoutError)

_KINDS: Kinds = {
    **dict.fromkeys(("endpoint_url", "key", "password", "profile", "secret", "token", "username"), TEXT),
    "client_kwargs": {
        **dict.fromkeys(("aws_access_key_id", "aws_secret_access_key", "aws_session_token"), TEXT),
        **dict.fromkeys(("endpoint_url", "region_name"), TEXT),
        "verify": CA_FILE,
    },
    "config_kwargs": {
        **dict.fromkeys(("proxies", "retries", "s3"), MAPPING),
        **dict.fromkeys(("connect_timeout", "max_pool_connections", "read_timeout"), NUMBER),
        "region_name": TEXT,
    },
    "s3_additional_kwargs": MAPPING,
}


# s3fs hands what it does not know to botocore's session, whose error does not come before the first request.
_NAMES = names_of_arguments(S3FileSystem, AioSession)
_NAMES_OF_CLIENT = names_of_arguments(Session.create_client) - {"self", "service_name", "config"}
_NAMES_OF_CONFIG = names_of_arguments(AioConfig) | {*Config.OPTION_DEFAULTS}


class S3Client:
    """Sends requests about objects, and signs URLs for them, with the credentials of one s3fs instance.

    Args:
        storage_options: Arguments of `s3fs.S3FileSystem`.
        limits: Bounds of S3's answers.

    Raises:
        OptionError: an option that is refused, or that s3fs does not know.
    """

    def __init__(self, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        environment = SecretOptions(os.environ)
        options = filled_options(storage_options, environment)
        self._times = _fill_times(options, limits)
        try:
            self._fs = shared(self, S3FileSystem, options, _close)
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(f"s3fs refuses the storage options: {type(error).__name__}") from error
        # The one that botocore will use, unless its configuration files name another.
        self.endpoint = _endpoint(options, environment)
        self.is_anonymous = bool(self._fs.anon)
        self.requester_pays = bool(self._fs.requester_pays)
        self._clock_offset_s = 0.0

    def call(self, method: str, bucket: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the botocore client of that bucket's region; its exceptions pass through.

        Where S3 refuses a request and its time differs from this machine's, the request is signed for that time and
        sent once more.
        """
        payer = {"RequestPayer": "requester"} if self.requester_pays else {}
        answer: dict[str, Any] = sync(self._fs.loop, self._call, method, bucket, {**payer, **parameters})
        return answer

    def signed_get(self, bucket: str, lifetime_s: int, **parameters: Any) -> str:
        """Return a URL that is valid for so long, or one without a signature for anonymous use.

        botocore builds the host from region, endpoint and addressing style, and signs with the credentials of this
        moment, for the region of the bucket where a redirect named it.
        """
        payer = {"RequestPayer": "requester"} if self.requester_pays else {}
        url: str = sync(self._fs.loop, self._signed_get, bucket, lifetime_s, {**payer, **parameters})
        return url

    def split(self, path: str) -> tuple[str, str]:
        """Split ``bucket/key``, where the bucket may be the ARN of an access point."""
        bucket, key, _ = self._fs.split_path(path)
        return bucket, key

    def ca_file(self) -> str | None:
        """Return the certificates this client trusts, or None for the system's."""
        verify = self._fs.client_kwargs.get("verify")
        named = verify if isinstance(verify, (str, os.PathLike)) else self._fs.session.get_config_variable("ca_bundle")
        return os.fspath(named) if named else None

    def proxy(self, url: str) -> str | None:
        """Return the proxy that ``config_kwargs`` names for the scheme of this URL."""
        proxies: Mapping[str, str] = self._fs.s3.meta.config.proxies or {}
        return proxies.get(url.partition(":")[0])

    async def _call(self, method: str, bucket: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._bounded_call(method, bucket, parameters)
        except ClientError as error:
            if not self._notes_clock(error.response) or _status(error.response) != 403:
                raise
            answer = await self._bounded_call(method, bucket, parameters)
        self._notes_clock(answer)
        if "Body" in answer:  # requested only for the reason of a refusal
            answer.pop("Body").close()
        return answer

    async def _bounded_call(self, method: str, bucket: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        client = await self._signing_client(bucket)
        with allowing(self._limits.answer_bytes, self._times) as allowance:
            try:
                request = getattr(client, method)(Bucket=bucket, **parameters)
                answer: dict[str, Any] = await asyncio.wait_for(request, self._times.request_s)
            except Exception as error:
                is_late = isinstance(error, (asyncio.TimeoutError, ReadTimeoutError))
                if is_late and allowance.has_slow_answer:  # although botocore has retried since
                    raise TooSlowError from None
                is_of_text = isinstance(error, InvalidRegionError) or not isinstance(error, _NOT_OF_TEXT)
                if not (allowance.has_answer and is_of_text):
                    raise
                raise MalformedAnswerError from error
        return answer

    async def _signed_get(self, bucket: str, lifetime_s: int, parameters: Mapping[str, Any]) -> str:
        client = await self._signing_client(bucket)
        return await presigned_get(client, lifetime_s, Bucket=bucket, **parameters)

    async def _signing_client(self, bucket: str) -> Any:
        is_first = self._fs.session is None
        with collector_paused() if is_first else nullcontext():  # it reads thousands of objects from JSON files
            if is_first:  # and the options hold no session
                give_session(self._fs, new_session(SecretOptions(self._fs.kwargs)))
                if not (self.is_anonymous or self._fs.key):
                    ask_aws_directly(self._fs.session)
            await self._fs.set_session()
            client = await self._fs.get_s3(bucket)
        follow_no_redirects(client)
        refuse_foreign_listings(client)
        client.meta.events.register("needs-retry.s3", _give_up_unknown_host, unique_id="streamer-give-up-unknown-host")
        client.meta.events.register("before-send.s3", _note_token, unique_id="streamer-note-token")
        if self._clock_offset_s:  # each region has a client, and so a signer, of its own
            sign_at_offset(request_signer(client), self._clock_offset_s)
        return client

    def _notes_clock(self, answer: Mapping[str, Any]) -> bool:
        """Compare the server's time with ours; return whether the difference is another than before."""
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        offset_s = clock_offset_s(date, time.time())
        if offset_s is None or abs(offset_s - self._clock_offset_s) <= TOLERANCE_S:
            return False
        self._clock_offset_s = offset_s
        return True


def _give_up_unknown_host(caught_exception: Exception | None = None, **_: Any) -> None:
    """End botocore's attempts at a host that does not exist; it has asked for the name anew before each."""
    if caught_exception is not None and is_unknown_host(getattr(caught_exception, "kwargs", {}).get("error")):
        raise caught_exception


def _note_token(request: Any, **_: Any) -> None:
    """Of the credentials only this is sent, so that a server may repeat it."""
    token = request.headers.get("X-Amz-Security-Token")
    note_credential(token.decode() if isinstance(token, bytes) else token)


async def _close(fs: S3FileSystem) -> None:
    creator = client_creator(fs)
    if creator is not None:
        await creator.__aexit__(None, None, None)


def _status(answer: Mapping[str, Any]) -> int:
    status: int = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status


def filled_options(storage_options: Mapping[str, Any], environment: Mapping[str, str]) -> SecretOptions:
    """Complete the arguments of `S3FileSystem` where the user gives none.

    fsspec's configuration is merged first, because filling ``client_kwargs`` would otherwise hide the configured one.

    Raises:
        OptionError: an unknown option, a value of the wrong type, ``verify=False``, a secret in ``endpoint_url``, or an
            ``asynchronous`` instance.
    """
    check_option_names("s3://", storage_options, _NAMES)
    options = configured_options(S3FileSystem, storage_options)
    check_types(options, _KINDS)
    check_option_names("client_kwargs", options.get("client_kwargs") or {}, _NAMES_OF_CLIENT)
    check_option_names("config_kwargs", options.get("config_kwargs") or {}, _NAMES_OF_CONFIG)
    options["client_kwargs"] = _filled_client(options, environment)
    options["config_kwargs"] = _filled_config(options, environment)
    for place in (options, options["client_kwargs"]):
        if place.get("endpoint_url") and not place["endpoint_url"].lower().startswith(("http://", "https://")):
            raise OptionError("endpoint_url must begin with http:// or https://", hint="As https://host:port")
    # They get no name: a traceback with locals would show the password.
    if set("@?#") & set((options.get("endpoint_url") or "") + (options["client_kwargs"].get("endpoint_url") or "")):
        raise OptionError("endpoint_url cannot hold a user, password or query: botocore would show it in its messages")
    return options


def _endpoint(options: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    of_options = options.get("endpoint_url") or options["client_kwargs"].get("endpoint_url")
    endpoint = of_options or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    return str(endpoint).rstrip("/") if endpoint else None


def _filled_client(options: Mapping[str, Any], environment: Mapping[str, str]) -> SecretOptions:
    client = SecretOptions(options.get("client_kwargs"))
    if client.get("verify") is False:
        raise OptionError(
            "verify=False is refused: TLS certificates are always verified",
            hint="Name the CA instead: client_kwargs={'verify': '/path/ca.pem'}, or AWS_CA_BUNDLE=/path/ca.pem",
        )
    if "verify" not in client and "AWS_CA_BUNDLE" not in environment and environment.get("SSL_CERT_FILE"):
        client["verify"] = environment["SSL_CERT_FILE"]  # as in the engine; botocore ignores it
    if _lacks_region(options, client, environment) and environment.get("AWS_REGION"):
        client["region_name"] = environment["AWS_REGION"]  # every other AWS SDK reads it
    return client


def _fill_times(options: SecretOptions, limits: Limits) -> AnswerTimes:
    """Set the time-outs of botocore where the user does not."""
    attempt_s = options["config_kwargs"].get("read_timeout")
    times = answer_times(limits, attempt_s if isinstance(attempt_s, (int, float)) else None)
    options["config_kwargs"].setdefault("connect_timeout", times.connect_s)
    options["config_kwargs"].setdefault("read_timeout", times.silence_s)
    return times


def _lacks_region(options: Mapping[str, Any], client: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Say whether no region is named; `cache_regions` counts as one, as s3fs ignores it beside a region."""
    named = client.get("region_name") or environment.get("AWS_DEFAULT_REGION")
    configured = (options.get("config_kwargs") or {}).get("region_name")
    return not (named or configured or options.get("cache_regions"))


def _filled_config(options: Mapping[str, Any], environment: Mapping[str, str]) -> SecretOptions:
    config = SecretOptions(options.get("config_kwargs"))
    config.setdefault("signature_version", "s3v4")  # botocore still signs URLs with the retired SigV2 by default
    if "AWS_MAX_ATTEMPTS" not in environment and "AWS_RETRY_MODE" not in environment:
        config.setdefault("retries", dict(RETRIES))
    return config
