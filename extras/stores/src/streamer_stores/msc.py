"""``msc://profile/path``: the profiles of NVIDIA's Multi-Storage Client, by the built-in storages.

Guarantees: a profile is read with its own endpoint, login and base path. A setting that cannot be kept is never left
out in silence: such a profile is left to the client's own file system, if it is installed, and else is an error.
https://nvidia.github.io/multi-storage-client/user_guide/config.html
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streamer.plugins import HttpSource, Limits, Store, UsageError, check_option_names, hookimpl, open_store

# Settings that decide nothing about the bytes, or only about the client's own requests.
_IDLE = frozenset(
    {
        *("base_path", "checksum_algorithm", "max_concurrency", "max_pool_connections", "multipart_chunksize"),
        *("multipart_threshold", "io_chunksize", "retries", "rust_client", "project_id"),
    }
)
_OF_BOTOCORE = (
    *("connect_timeout", "read_timeout", "request_checksum_calculation", "response_checksum_validation", "s3"),
    "signature_version",
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class _UnusualError(Exception):
    """A setting of a profile cannot be kept; its text names the setting."""


@hookimpl
def streamer_open_store(uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the storage of a profile."""
    check_option_names("msc://", storage_options, [])
    profile, _, path = uri.partition("://")[2].partition("/")
    if ".." in path.split("/"):
        raise UsageError("The path leads out of the profile's base path", uri=uri, hint="Leave .. out")
    try:
        url, options = _place_of(profile, path, uri)
    except _UnusualError as error:
        if find_spec("multistorageclient") is not None:
            return None  # fsspec then opens the client's own file system
        what = f"The profile {profile} has {error}, which only Multi-Storage Client itself can use"
        raise UsageError(what, uri=uri, hint="Install multi-storage-client") from None
    return open_store(url, options, limits=limits)


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Return the kind of source of most profiles."""
    return HttpSource


def _place_of(profile: str, path: str, uri: str) -> tuple[str, dict[str, Any]]:
    """Return the URL and the options of a path of a profile."""
    profiles = _profiles(uri)
    if profile == "default" and profile not in profiles:
        return f"/{path}", {}
    if profile not in profiles:
        names = f"Multi-Storage Client's profiles: {', '.join(sorted(profiles))}"
        hint = names if profiles else "No file with profiles was found. Name it in MSC_CONFIG"
        raise UsageError(f"There is no profile {profile!r}", uri=uri, hint=hint)
    settings = profiles[profile]
    if unusual := sorted(set(settings) - {"storage_provider", "credentials_provider", "caching_enabled", "retry"}):
        raise _UnusualError(unusual[0])
    provider, login = (settings.get(f"{name}_provider") or {} for name in ("storage", "credentials"))
    kind, options = str(provider.get("type")), dict(provider.get("options") or {})
    translate = _KINDS.get(kind)
    if translate is None:
        raise _UnusualError(f"a storage of type {kind}")
    base = str(options.get("base_path") or "")
    used, translated = translate(options, str(login.get("type") or ""), dict(login.get("options") or {}))
    if unusual := sorted(name for name in options if name not in used and name not in _IDLE):
        raise _UnusualError(f"the setting {unusual[0]}")
    scheme = {"s3": "s3", "s8k": "s3", "gcs": "gs", "azure": "az", "file": "file"}[kind]
    if scheme == "file":
        return f"{base.rstrip('/')}/{path}", {}
    return f"{scheme}://{base.strip('/')}/{path}", translated


def _of_s3(options: Mapping[str, Any], kind: str, login: Mapping[str, Any]) -> tuple[set[str], dict[str, Any]]:
    client = {"region_name": options.get("region_name"), "verify": options.get("verify")}
    config = {name: options[name] for name in _OF_BOTOCORE if name in options}
    made = {"endpoint_url": options.get("endpoint_url"), "config_kwargs": config, "client_kwargs": _given(client)}
    if kind == "S3Credentials":
        names = {"key": "access_key", "secret": "secret_key", "token": "session_token"}
        made |= {name: login.get(each) for name, each in names.items()}
    elif kind:
        raise _UnusualError(f"credentials of type {kind}")
    else:
        made["profile"] = options.get("profile_name")
    if str(config.get("signature_version")).upper() == "UNSIGNED":
        made["anon"] = bool(config.pop("signature_version"))
    return {"region_name", "verify", "endpoint_url", "profile_name", *_OF_BOTOCORE}, _given(made)


def _of_gcs(options: Mapping[str, Any], kind: str, login: Mapping[str, Any]) -> tuple[set[str], dict[str, Any]]:
    made = {"endpoint_url": options.get("endpoint_url")}
    if kind == "GoogleServiceAccountCredentialsProvider":
        made["token"] = login.get("file") or login.get("info")
    elif kind:
        raise _UnusualError(f"credentials of type {kind}")
    return {"endpoint_url"}, _given(made)


def _of_azure(options: Mapping[str, Any], kind: str, login: Mapping[str, Any]) -> tuple[set[str], dict[str, Any]]:
    if kind == "AzureCredentials":
        return {"endpoint_url"}, _given({"connection_string": login.get("connection")})
    if kind:
        raise _UnusualError(f"credentials of type {kind}")
    host = str(options.get("endpoint_url") or "").partition("://")[2].rstrip("/")
    return {"endpoint_url"}, _given({"account_name": host.partition(".")[0], "account_host": host})


def _of_file(_: Mapping[str, Any], kind: str, login: Mapping[str, Any]) -> tuple[set[str], dict[str, Any]]:
    if kind or login:
        raise _UnusualError(f"credentials of type {kind}")
    return set(), {}


_KINDS: dict[str, Callable[..., tuple[set[str], dict[str, Any]]]] = {
    "azure": _of_azure,
    "file": _of_file,
    "gcs": _of_gcs,
    "s3": _of_s3,
    "s8k": _of_s3,
}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is not set; an empty text is a default of the client."""
    return {name: value for name, value in options.items() if value not in (None, "", {})}


def _profiles(uri: str) -> dict[str, Any]:
    """Read the profiles of the first file that exists, in the client's order."""
    path = next((each for each in _files() if each.is_file()), None)
    if path is None:
        return {}
    try:
        text = path.read_text()
        if path.suffix == ".json":
            document = json.loads(text)
        else:
            import yaml  # noqa: PLC0415 (JSON needs none)

            document = yaml.safe_load(text)
        profiles = {
            str(name): each for name, each in ((document or {}).get("profiles") or {}).items() if isinstance(each, dict)
        }
    except Exception as error:  # the errors of YAML are of no class of Python's
        what = f"The configuration of Multi-Storage Client in {path} cannot be read ({type(error).__name__})"
        raise UsageError(what, uri=uri, hint="Check its syntax, or name another file in MSC_CONFIG") from None
    return {name: _expanded(each, uri) for name, each in profiles.items()}


def _files() -> Iterator[Path]:
    if os.environ.get("MSC_CONFIG"):
        yield Path(os.environ["MSC_CONFIG"])
        return
    home = os.environ.get("HOME", "")
    folders = [os.environ["XDG_CONFIG_HOME"]] if os.environ.get("XDG_CONFIG_HOME") else []
    places = [f"{folder}/msc/config" for folder in folders]
    places += [f"{home}/.msc_config", f"{home}/.config/msc/config"] if home else []
    places += [f"{each.strip()}/msc/config" for each in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    for place in (*places, "/etc/msc_config"):
        yield from (Path(f"{place}.yaml"), Path(f"{place}.json"))


def _expanded(value: Any, uri: str) -> Any:
    """Replace variables of the environment, as the client does."""
    if isinstance(value, dict):
        return {name: _expanded(each, uri) for name, each in value.items()}
    if isinstance(value, list):
        return [_expanded(each, uri) for each in value]
    if not isinstance(value, str):
        return value

    def found(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            what = f"The configuration of Multi-Storage Client needs the variable {name}"
            raise UsageError(what, uri=uri, hint="Set it")
        return os.environ[name]

    return _VARIABLE.sub(found, value)
