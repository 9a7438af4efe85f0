"""What the S3 client is reported where the user said nothing, and that it is reported nothing else."""

from __future__ import annotations

import copy
import sys
from typing import Any

import fsspec.config
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from each_row import each_row
from s3fs import S3FileSystem

from streamer.backends.aws_sessions import EnvironmentSession
from streamer.backends.fsspec_settings import names_of_arguments
from streamer.backends.s3.botocore_login import BotocoreLogin
from streamer.backends.s3.login import plain_login
from streamer.backends.s3.options import NAMES, OF_AIOBOTOCORE, filled_options
from streamer.core.errors import OptionError, UnknownSchemeError
from streamer.plugins import open_store


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.config, "conf", {})


def client(options: dict[str, Any], environment: dict[str, str]) -> Any:
    return filled_options(options, environment)["client_kwargs"]


def test_urls_are_signed_with_the_current_signature() -> None:
    assert filled_options({}, {}) == {"client_kwargs": {}, "config_kwargs": {"signature_version": "s3v4"}}


def test_what_the_user_configures_is_kept() -> None:
    config = {"signature_version": "s3", "retries": {"mode": "adaptive"}, "s3": {"addressing_style": "path"}}
    assert filled_options({"config_kwargs": config}, {})["config_kwargs"] == config


@pytest.mark.parametrize(
    ("retries", "variables", "attempts"),
    [
        (None, {}, 3),
        (None, {"AWS_MAX_ATTEMPTS": "5"}, 5),
        ({"total_max_attempts": 2}, {"AWS_MAX_ATTEMPTS": "5"}, 2),
        ({"max_attempts": 0}, {}, 1),  # as botocore counts: after the first
        ({"mode": "adaptive"}, {"AWS_MAX_ATTEMPTS": " "}, 3),
    ],
)
def test_a_request_is_sent_as_often_as_botocore_would(
    monkeypatch: pytest.MonkeyPatch, retries: dict[str, Any] | None, variables: dict[str, str], attempts: int
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options = filled_options({"config_kwargs": {"retries": retries}}, {})
    assert BotocoreLogin(options).attempts() == attempts


def test_every_known_option_is_one_of_s3fs() -> None:
    """It is not asked for these."""
    assert names_of_arguments(S3FileSystem, AioSession) >= NAMES
    assert names_of_arguments(AioConfig) | {"warm_up_loader_caches"} >= OF_AIOBOTOCORE


def test_the_callers_options_are_not_changed() -> None:
    given = {"client_kwargs": {"verify": "/ca.pem"}, "config_kwargs": {"s3": {}}}
    before = copy.deepcopy(given)
    filled_options(given, {"AWS_REGION": "eu-west-1"})
    assert given == before


def test_options_of_fsspecs_configuration_are_completed_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    configured = {"s3": {"client_kwargs": {"verify": "/ca.pem"}, "endpoint_url": "http://configured"}}
    monkeypatch.setattr(fsspec.config, "conf", configured)
    options = filled_options({"endpoint_url": "http://given"}, {"AWS_REGION": "eu-west-1"})
    assert options["client_kwargs"] == {"verify": "/ca.pem", "region_name": "eu-west-1"}
    assert options["endpoint_url"] == "http://given"


@each_row(
    ("options", "environment", "region"),
    [
        ({}, {}, None),
        ({}, {"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({}, {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"}, None),  # botocore reads that itself
        ({"client_kwargs": {"region_name": "us-west-2"}}, {"AWS_REGION": "eu-west-1"}, "us-west-2"),
        ({"config_kwargs": {"region_name": "us-west-2"}}, {"AWS_REGION": "eu-west-1"}, None),
        ({"cache_regions": True}, {"AWS_REGION": "eu-west-1"}, None),
    ],
)
def test_aws_region_counts_where_nothing_else_names_a_region(
    options: dict[str, Any], environment: dict[str, str], region: str | None
) -> None:
    assert client(options, environment).get("region_name") == region


@each_row(
    ("options", "environment", "verify"),
    [
        ({}, {"SSL_CERT_FILE": "/ca.pem"}, "/ca.pem"),
        ({}, {"SSL_CERT_FILE": "/ca.pem", "AWS_CA_BUNDLE": "/aws.pem"}, "/aws.pem"),
        ({}, {"SSL_CERT_FILE": "/ca.pem", "AWS_CA_BUNDLE": " "}, "/ca.pem"),
        ({}, {"REQUESTS_CA_BUNDLE": "/requests.pem", "SSL_CERT_FILE": ""}, "/requests.pem"),
        ({}, {}, True),
        ({"client_kwargs": {"verify": "/mine.pem"}}, {"SSL_CERT_FILE": "/ca.pem"}, "/mine.pem"),
        ({"client_kwargs": {"verify": True}}, {"SSL_CERT_FILE": "/ca.pem"}, "/ca.pem"),
        ({"client_kwargs": {"verify": True}}, {"AWS_CA_BUNDLE": "/aws.pem"}, "/aws.pem"),
    ],
)
def test_ssl_cert_file_counts_where_nothing_else_names_a_ca(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], environment: dict[str, str], verify: str | bool
) -> None:
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    named = client(options, environment).get("verify")
    assert (named or EnvironmentSession({}).get_config_variable("ca_bundle")) == verify
    given = client({**options, "session": EnvironmentSession({})}, environment)
    assert given.get("verify") == verify


def test_the_session_of_the_user_does_not_switch_the_check_off_regression() -> None:
    class Session:
        def get_config_variable(self, name: str) -> str:
            return ""

    assert client({"session": Session()}, {}).get("verify") is True


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"client_kwargs": {"verify": False}}, "always verified"),
        ({"endpoint_url": "http://user:CANARY@host"}, "endpoint_url"),
        ({"client_kwargs": {"endpoint_url": "http://user:CANARY@host"}}, "endpoint_url"),
        ({"asynchronous": True}, "asynchronous"),
    ],
)
def test_some_options_are_refused(options: dict[str, Any], reported: str) -> None:
    with pytest.raises(OptionError, match=reported) as caught:
        filled_options(options, {})
    assert "CANARY" not in str(caught.value)


def test_a_missing_s3fs_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for name in [name for name in sys.modules if name.startswith("streamer.backends.s3")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UnknownSchemeError, match=r"needs s3fs.*the extra streamer\[s3\]"):
        open_store("s3://bucket/key")


def test_a_version_is_pinned_for_the_object_of_the_url_alone() -> None:
    store = open_store("s3://bucket/folder/key?versionId=v1", {"key": "k", "secret": "s"})
    assert store._version_of("bucket/folder/key") == {"VersionId": "v1"}
    assert store._version_of("bucket/folder/other") == {}


@pytest.mark.parametrize("name", ["key", "secret", "token"])
def test_a_key_with_a_line_end_is_reported(name: str) -> None:
    keys = {"key": "KEY", "secret": "SECRET", "token": "TOKEN", name: "WORD\n"}
    with pytest.raises(OptionError, match=f"{name} has a space or a line end around it") as caught:
        filled_options(keys, {})
    assert "WORD" not in str(caught.value)
    assert plain_login(keys, {}) is None


def test_a_key_of_the_environment_with_a_line_end_is_reported() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "WORD\n"}
    with pytest.raises(OptionError, match="AWS_SECRET_ACCESS_KEY has a space or a line end"):
        filled_options({}, environment)
    assert plain_login({}, environment) is None
    filled_options({"anon": True}, environment)
    filled_options({"key": "KEY", "secret": "SECRET"}, environment)


@each_row("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_REGION"])
@each_row("around", ["{} ", "{}\n", "\t{}"])
def test_an_endpoint_or_region_with_a_space_around_it_is_reported_regression(name: str, around: str) -> None:
    value = around.format("http://127.0.0.1:9000/" if "URL" in name else "us-east-1")
    options = {"key": "KEY", "secret": "SECRET"}
    with pytest.raises(OptionError, match=f"{name} has a space or a line end around it"):
        filled_options(options, {name: value})
    assert plain_login(options, {name: value}) is None
    of_options = {"endpoint_url": "http://127.0.0.1:1", "client_kwargs": {"region_name": "us-east-1"}}
    filled_options({**options, **of_options}, {name: value})


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"endpoint_url": "http://127.0.0.1:9000 "}, "endpoint_url has a space"),
        ({"client_kwargs": {"region_name": "us-east-1\n"}}, r"client_kwargs\['region_name'\] has a space"),
        ({"config_kwargs": {"region_name": "us-east-1\n"}}, r"config_kwargs\['region_name'\] has a space"),
    ],
)
def test_an_option_with_a_space_around_it_is_reported_regression(options: dict[str, Any], reported: str) -> None:
    with pytest.raises(OptionError, match=reported):
        filled_options(options, {})


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "https://user:CANARY@host"])
def test_a_variable_that_is_no_endpoint_is_named_regression(endpoint: str) -> None:
    with pytest.raises(OptionError, match=r"AWS_ENDPOINT_URL (must begin with|cannot hold)") as caught:
        filled_options({}, {"AWS_ENDPOINT_URL": endpoint})
    assert "CANARY" not in str(caught.value)
