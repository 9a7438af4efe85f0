"""The client of one load from S3: plain requests at once, everything else with s3fs, which is imported only then.

To import s3fs and make a client of botocore takes a third of a second, which is most of what a small load takes. A
request that did not succeed at once is repeated with them, and so are all later ones: the errors, the regions, the
clocks and the retries are theirs alone. A listing that is refused to them, too, says nothing of other requests: many
may read and not list, and s3fs takes 3 ms of the interpreter for each of a thousand objects.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from streamer.backends.client.answer_times import answer_times
from streamer.backends.s3.plain_login import plain_login
from streamer.backends.s3.plain_requests import PlainRequests
from streamer.core.collector import collector_paused
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.options import SecretOptions

if TYPE_CHECKING:
    from streamer.backends.s3.client import S3Client

__all__ = ["QuickClient"]

DEFAULT_LIMITS = Limits()
LISTING = "list_objects_v2"

if find_spec("s3fs") is None:  # to be found out now, rather than at the first request that needs it
    raise ModuleNotFoundError("No module named 's3fs'", name="s3fs")


class QuickClient:
    """Sends requests about objects, and signs URLs for them, as `S3Client` does.

    Args:
        storage_options: Arguments of `s3fs.S3FileSystem`.
        limits: Bounds of S3's answers.

    Raises:
        OptionError: an option that is refused, or that s3fs does not know.

    Attributes:
        endpoint: Where requests go; None for Amazon's own.
        is_anonymous: Requests are not signed.
        requester_pays: They say that who asks pays for the answer.
    """

    def __init__(self, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._options = SecretOptions(storage_options)
        self._limits = limits
        self._lock = threading.Lock()
        self._made: S3Client | None = None  # by the first that needs it, under the lock
        login = plain_login(self._options, set_variables())
        if login is None:
            self._plain = None
            client = self._full()
            self.endpoint, self.is_anonymous = client.endpoint, client.is_anonymous
            self.requester_pays = client.requester_pays
        else:
            self._plain = PlainRequests(login, limits.answer_bytes, answer_times(limits))
            self.endpoint, self.is_anonymous = login.endpoint, login.keys is None
            self.requester_pays = False

    def call(self, method: str, bucket: str, **parameters: Any) -> dict[str, Any]:
        """Send a request; the exceptions of botocore's client pass through."""
        plain = self._plain
        if plain is not None and plain.serves(method, parameters):
            answer = plain.call(method, bucket, parameters)
            if answer is not None:
                return answer
        return self._full_call(method, bucket, parameters)

    def signed_get(self, bucket: str, lifetime_s: int, **parameters: Any) -> str:
        """Return a URL that is valid for so long, or one without a signature for anonymous use."""
        plain = self._plain
        if plain is not None and list(parameters) == ["Key"]:
            url = plain.signed_get(bucket, lifetime_s, parameters["Key"])
            if url is not None:
                return url
        return self._full().signed_get(bucket, lifetime_s, **parameters)

    def renew(self) -> None:
        """Have the next URL of each bucket signed by botocore, with the credentials of that moment."""
        self._plain = None
        self._full().forget_templates()

    def split(self, path: str) -> tuple[str, str]:
        """Split ``bucket/key``, where the bucket may be the ARN of an access point."""
        if self._plain is None or path.startswith("arn:"):
            return self._full().split(path)
        bucket, _, key = path.partition("/")
        return bucket, key

    def ca_file(self) -> str | None:
        """Return the certificates this client trusts, or None for the system's."""
        plain = self._plain
        return self._full().ca_file() if plain is None else plain.ca_file()

    def proxy(self, url: str) -> str | None:
        """Return the proxy that ``config_kwargs`` names for the scheme of this URL."""
        return self._full().proxy(url) if self._plain is None else None

    def client_certificate(self) -> tuple[str | None, str | None]:
        """Return the files of the certificate that ``config_kwargs`` names, and of its key."""
        return self._full().client_certificate() if self._plain is None else (None, None)

    def user_agent(self) -> str | None:
        """Return the ``User-Agent`` that ``config_kwargs`` asks for, or None for the engine's own."""
        return self._full().user_agent() if self._plain is None else None

    def _full_call(self, method: str, bucket: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request with s3fs, and all later ones, unless S3 refuses this one to it, too."""
        client = self._full()
        try:
            answer = client.call(method, bucket, **parameters)
        except Exception as error:
            if not (method == LISTING and hasattr(error, "response")):
                self._plain = None
            raise
        self._plain = None
        return answer

    def _full(self) -> S3Client:
        with self._lock:
            if self._made is None:
                with collector_paused():
                    from streamer.backends.s3.client import S3Client  # noqa: PLC0415 (see the module's docstring)
                self._made = S3Client(self._options, self._limits)
            return self._made
