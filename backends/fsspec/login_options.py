"""Completes the options of file systems that fsspec itself makes, so that blank variables count as unset there, too.

Guarantees: an option of the user is never changed. A ``verify`` that switches the verification of certificates off is
refused. Without blank variables only the session of an s3fs is set; a load without a chain uses the same session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsspec import AbstractFileSystem

from streamer.backends.fsspec.instance_snapshot import layers
from streamer.backends.fsspec.options import names_of_arguments
from streamer.backends.option_names import check_option_names
from streamer.core.errors import OptionError
from streamer.core.secrets.environment import blank_variables, is_blank
from streamer.core.secrets.options import SecretOptions

__all__ = ["LOGINS", "check_instance", "with_login"]


_HINT = "Name the CA instead: client_kwargs={'verify': '/path/ca.pem'}, or AWS_CA_BUNDLE=/path/ca.pem"


def with_login(scheme: str) -> Callable[[str, Mapping[str, Any]], SecretOptions]:
    """Return the function that completes the options for a URL of a scheme in `LOGINS`."""

    def completed(url: str, options: Mapping[str, Any]) -> SecretOptions:
        del url  # all URLs of these schemes have the same rules
        own = SecretOptions(options)
        LOGINS[scheme](own)
        return own

    return completed


def check_instance(fs: AbstractFileSystem) -> None:
    """Check that the caller's file system, and those under it, verify certificates; a blank variable counts as unset.

    Raises:
        OptionError: a file system is already connected without verifying certificates.
    """
    for layer in layers(fs):
        if "s3fs" not in {cls.__module__.partition(".")[0] for cls in type(layer).__mro__}:
            continue
        from streamer.backends.fsspec.aws_session import AsyncEnvironmentSession  # noqa: PLC0415  (only S3 needs it)
        from streamer.backends.private_names.s3fs import give_session, is_connected, verifies_tls  # noqa: PLC0415

        if not verifies_tls(layer):
            raise OptionError("The file system fs= is connected without verifying TLS certificates", hint=_HINT)
        if not is_connected(layer) and layer.session is None:
            give_session(layer, AsyncEnvironmentSession(SecretOptions(layer.kwargs)))


def _fill_s3(options: SecretOptions) -> None:
    client = options.get("client_kwargs")
    verify = client.get("verify") if isinstance(client, Mapping) else None
    if verify is False or is_blank(verify):
        raise OptionError(
            "verify=False is refused, and so is a blank one: TLS certificates are always verified",
            hint=_HINT,
        )
    if options.get("session") is not None:
        return
    try:
        from aiobotocore.session import AioSession  # noqa: PLC0415  (only S3 needs it)
        from s3fs import S3FileSystem  # noqa: PLC0415

        from streamer.backends.fsspec.aws_session import AsyncEnvironmentSession  # noqa: PLC0415
    except ImportError:  # fsspec reports it
        return
    of_session = names_of_arguments(AioSession)
    check_option_names("s3://", options, names_of_arguments(S3FileSystem) | of_session)
    options["session"] = AsyncEnvironmentSession({name: options[name] for name in options if name in of_session})


def _fill_hub(options: SecretOptions) -> None:
    try:
        from streamer.backends.hub_variables import OF_HOME, hub_endpoint, saved_token  # noqa: PLC0415
    except ImportError:
        return
    if blank_variables(["HF_ENDPOINT"]):
        options.setdefault("endpoint", hub_endpoint())
    if blank_variables((*OF_HOME, "HF_TOKEN_PATH")):
        options.setdefault("token", saved_token() or False)


# The functions that complete the options of each scheme.
LOGINS: Mapping[str, Callable[[SecretOptions], None]] = {"hf": _fill_hub, "s3": _fill_s3, "s3a": _fill_s3}
