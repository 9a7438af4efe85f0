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
from weakref import WeakSet

from botocore.exceptions import BotoCoreError, ClientError, InvalidRegionError
from fsspec.asyn import sync
from s3fs import S3FileSystem

from streamer.backends.aws_sessions import EnvironmentSession
from streamer.backends.client.demanded_pause import LONGEST_PAUSE_S, demanded_pause_s
from streamer.backends.fsspec.instances import shared
from streamer.backends.private_names.botocore import request_signer
from streamer.backends.private_names.s3fs import client_creator, give_session
from streamer.backends.s3.clock import TOLERANCE_S, clock_offset_s, sign_at_offset
from streamer.backends.s3.errors import MalformedAnswerError
from streamer.backends.s3.foreign_answers import ForeignAnswerError
from streamer.backends.s3.options import endpoint_of, filled_options, times_of
from streamer.backends.s3.presigning import hold_to_region, presigned_get, template_of
from streamer.backends.s3.tenants import allow_tenants, check_tenant
from streamer.backends.s3.transport import Call, calling, is_final, send_natively
from streamer.backends.s3.url_template import UrlTemplate
from streamer.backends.s3.user_agent import user_agent_of
from streamer.core.collector import collector_paused
from streamer.core.errors import OptionError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.options import SecretOptions
from streamer.core.secrets.texts import note_credential
from streamer.core.store.sources import HttpSource
from streamer.core.store.trust import trust_in

__all__ = ["S3Client"]

DEFAULT_LIMITS = Limits()

# Exceptions with an answer that are not about its text; any other means that botocore could not parse it.
_NOT_OF_TEXT = (BotoCoreError, ClientError, ForeignAnswerError, RecursionError, asyncio.TimeoutError)


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
        environment = set_variables()
        options = filled_options(storage_options, environment)
        self._times = times_of(options, limits)
        try:
            self._fs = shared(self, S3FileSystem, options, _close)
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(f"s3fs refuses the storage options: {type(error).__name__}") from error
        self.endpoint = endpoint_of(options, environment)
        self.is_anonymous = bool(self._fs.anon)
        # s3fs says what the user asked since 2026.9; before, only what requests then carry.
        self.requester_pays = bool(getattr(self._fs, "requester_pays", None) or self._fs.req_kw)
        self._clock_offset_s = 0.0
        self._prepared: WeakSet[Any] = WeakSet()
        self._templates: dict[tuple[str, int], UrlTemplate | None] = {}  # by bucket and lifetime

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
        moment, for the region of the bucket where a redirect named it. For some seconds, further URLs of the bucket are
        signed alike.
        """
        payer = {"RequestPayer": "requester"} if self.requester_pays else {}
        template = self._templates.get((bucket, lifetime_s))
        is_plain = not payer and list(parameters) == ["Key"]
        if template is not None and is_plain and (url := template.url(parameters["Key"])) is not None:
            return url
        return str(sync(self._fs.loop, self._signed_get, bucket, lifetime_s, {**payer, **parameters}, is_plain))

    def forget_templates(self) -> None:
        """Have the next URL of each bucket signed with the credentials of that moment."""
        self._templates.clear()

    def split(self, path: str) -> tuple[str, str]:
        """Split ``bucket/key``, where the bucket may be the ARN of an access point."""
        bucket, key, _ = self._fs.split_path(path)
        return bucket, key

    def ca_file(self) -> str | None:
        """Return the certificates this client trusts, or None for the system's."""
        named = self._fs.client_kwargs.get("verify") or self._fs.session.get_config_variable("ca_bundle")
        return os.fspath(named) if isinstance(named, (str, os.PathLike)) else None

    def proxy(self, url: str) -> str | None:
        """Return the proxy that ``config_kwargs`` names for the scheme of this URL."""
        return self._proxies().get(url.partition(":")[0])

    def _proxies(self) -> Mapping[str, str]:
        proxies: Mapping[str, str] = self._fs.s3.meta.config.proxies or {}
        return proxies

    def client_certificate(self) -> tuple[str | None, str | None]:
        """Return the files of the certificate that ``config_kwargs`` names, and of its key if that has its own."""
        named = self._fs.s3.meta.config.client_cert
        return (named, None) if named is None or isinstance(named, str) else tuple(named)

    def user_agent(self) -> str | None:
        """Return the ``User-Agent`` that the configuration asks for, or None for the engine's own."""
        config = self._fs.s3.meta.config  # its `user_agent` is always there, and what botocore makes of all three
        default = getattr(self._fs.session.get_default_client_config(), "user_agent", None)
        named = self._fs.config_kwargs.get("user_agent") or default
        return user_agent_of(named, config.user_agent_appid, config.user_agent_extra)

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
        call = Call(self._way(), self._proxies(), self._times, self._limits.answer_bytes)
        with calling(call):
            try:
                request = getattr(client, method)(Bucket=bucket, **parameters)
                answer: dict[str, Any] = await asyncio.wait_for(request, self._times.request_s)
            except Exception as error:
                is_of_text = isinstance(error, InvalidRegionError) or not isinstance(error, _NOT_OF_TEXT)
                if not (call.has_answer and is_of_text):
                    raise
                raise MalformedAnswerError from error
        return answer

    async def _signed_get(
        self, bucket: str, lifetime_s: int, parameters: Mapping[str, Any], makes_template: bool
    ) -> str:
        client = await self._signing_client(bucket)
        url = await presigned_get(client, lifetime_s, Bucket=bucket, **parameters)
        if makes_template:
            self._templates[bucket, lifetime_s] = await template_of(client, url, parameters["Key"])
        return url

    async def _signing_client(self, bucket: str) -> Any:
        is_first = self._fs.session is None
        with collector_paused() if is_first else nullcontext():  # it reads thousands of objects from JSON files
            if is_first:  # and the options hold no session
                give_session(self._fs, EnvironmentSession(SecretOptions(self._fs.kwargs)))
            if not self._prepared and (ca_file := self.ca_file()):
                trust_in(ca_file)  # says what is wrong with it; botocore reads it for http://, too, and cannot connect
            await self._fs.set_session()
            check_tenant(self._fs.s3, bucket)
            client = await self._fs.get_s3(bucket)
        if client not in self._prepared:  # each region has a client
            self._prepared.add(client)
            _prepare(client)
        if self._clock_offset_s:  # which the signer of each client has to know
            sign_at_offset(request_signer(client), self._clock_offset_s)
        return client

    def _way(self) -> HttpSource:
        """Return certificates and headers of the reads, for any URL."""
        name, (certificate, key) = self.user_agent(), self.client_certificate()
        return HttpSource(
            "",
            {"User-Agent": name} if name else {},
            ca_file=self.ca_file(),
            client_cert=certificate,
            client_key=key,
        )

    def _notes_clock(self, answer: Mapping[str, Any]) -> bool:
        """Compare the server's time with ours; return whether the difference is another than before."""
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        offset_s = clock_offset_s(date, time.time())
        if offset_s is None or abs(offset_s - self._clock_offset_s) <= TOLERANCE_S:
            return False
        self._clock_offset_s = offset_s
        self._templates.clear()
        return True


def _prepare(client: Any) -> None:
    """Register what botocore's client is to do besides; may be called repeatedly."""
    send_natively(client)
    allow_tenants(client)
    hold_to_region(client)
    client.meta.events.register("needs-retry.s3", _give_up, unique_id="streamer-give-up")
    client.meta.events.register("before-send.s3", _note_token, unique_id="streamer-note-token")


def _give_up(response: Any = None, operation: Any = None, caught_exception: Exception | None = None, **_: Any) -> None:
    """End botocore's attempts: another one would fail alike, or the server wants to be left alone for longer."""
    answer: Mapping[str, Any] = response[1] if response is not None else {}
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if demanded_pause_s(_status(answer), headers) > LONGEST_PAUSE_S:
        raise ClientError(answer, operation.name)
    if caught_exception is not None and is_final(caught_exception):
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
