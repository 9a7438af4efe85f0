"""The client of one load from S3: our own requests, and botocore for all requests that they do not support.

botocore's client takes a tenth of a second to import and make. A load needs it for unusual options, for the region of a
redirect, and for a server with another clock. Once it has replaced a plain request, it sends all further requests.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from streamer.backends.s3.plain_login import plain_login
from streamer.backends.s3.plain_requests import PlainRequests
from streamer.core.collector import collector_paused
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.options import SecretOptions
from streamer.core.store.sources import HttpSource

if TYPE_CHECKING:
    from streamer.backends.s3.botocore_client import BotocoreClient

__all__ = ["S3Client"]

DEFAULT_LIMITS = Limits()

if find_spec("s3fs") is None:  # the options are those of s3fs, and s3fs installs botocore
    raise ModuleNotFoundError("No module named 's3fs'", name="s3fs")


class S3Client:
    """Sends requests about objects, and signs URLs for them.

    Args:
        storage_options: Arguments of `s3fs.S3FileSystem`.
        limits: Bounds of S3's answers.

    Raises:
        OptionError: an option is refused, or s3fs does not have it.

    Attributes:
        endpoint: The URL that requests are sent to; None for Amazon's own endpoint.
        is_anonymous: Requests are not signed.
    """

    def __init__(self, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._options = SecretOptions(storage_options)
        self._limits = limits
        self._lock = threading.Lock()
        self._botocore_client: BotocoreClient | None = None  # made under the lock, when it is first needed
        self._plain = self._new_plain()
        if self._plain is None:
            self.endpoint, self.is_anonymous = self._botocore().endpoint, self._botocore().is_anonymous
        else:
            self.endpoint, self.is_anonymous = self._plain.login.endpoint, self._plain.login.keys is None

    def call(self, method: str, bucket: str, **parameters: Any) -> dict[str, Any]:
        """Send a request, named like a method of botocore's client; return the same result as that method.

        Raises:
            Exception: an exception that `storage_error` translates.
        """
        plain = self._plain
        if plain is None or not plain.serves(method, bucket, parameters):
            return self._botocore().call(method, bucket, **parameters)
        answer = plain.call(method, bucket, parameters)
        if answer is None:
            self._plain = None
            answer = self._botocore().call(method, bucket, **parameters)
        return answer

    def put_part(self, bucket: str, part: memoryview, crc32c: str, **parameters: Any) -> Mapping[str, str]:
        """Send one part of an object; see `BotocoreClient.put_part`."""
        return self._botocore().put_part(bucket, part, crc32c, **parameters)

    def takes_checksums(self) -> bool:
        """Whether uploads may carry checksums that S3 does not require."""
        return self._botocore().takes_checksums()

    def signed_get(self, bucket: str, lifetime_s: int, **parameters: Any) -> str:
        """Return a URL that is valid for `lifetime_s`; for anonymous use, return a URL without a signature.

        Args:
            bucket: The bucket, or the ARN of an access point.
            lifetime_s: Seconds that the URL is valid.
            parameters: ``Key``, and ``VersionId`` to pin a version.
        """
        plain = self._plain
        if plain is not None and plain.serves("head_object", bucket, parameters):
            return plain.signed_get(bucket, lifetime_s, parameters)
        return self._botocore().signed_get(bucket, lifetime_s, **parameters)

    def renew(self) -> None:
        """Sign the next URL of each bucket with the credentials that are current then."""
        if self._plain is not None:
            self._plain = self._new_plain()
        if self._botocore_client is not None or self._plain is None:
            self._botocore().forget_templates()

    def source_for(self, url: str) -> HttpSource:
        """Return the source for a signed URL, with its headers, certificates and proxy."""
        plain = self._plain
        return self._botocore().source_for(url) if plain is None else plain.source_for(url)

    def _new_plain(self) -> PlainRequests | None:
        login = plain_login(self._options, set_variables())
        return None if login is None else PlainRequests(login, self._limits)

    def _botocore(self) -> BotocoreClient:
        with self._lock:
            if self._botocore_client is None:
                with collector_paused():
                    from streamer.backends.s3.botocore_client import BotocoreClient  # noqa: PLC0415 (see above)
                self._botocore_client = BotocoreClient(self._options, self._limits)
            return self._botocore_client
