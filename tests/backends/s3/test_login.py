"""A login that is found without botocore is the one that botocore uses; where it may not be, none is found."""

from __future__ import annotations

import os
import shutil

import fsspec.config
import pytest
from botocore.exceptions import NoCredentialsError

from streamer.backends.s3.botocore_login import BotocoreLogin
from streamer.backends.s3.login import keys_of_session, plain_login
from streamer.backends.s3.options import filled_options
from streamer.core.errors import UsageError
from streamer.core.secrets.environment import set_variables
from streamer.core.store.certificates import default_ca_file

OWN = "http://127.0.0.1:9000"
KEYS = {"key": "AKIDOPTION", "secret": "of the options"}
OF_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": "of the environment"}
CREDENTIALS = """
[default]
aws_access_key_id = AKIDDEFAULT
aws_secret_access_key = of the file
[other]
aws_access_key_id = AKIDOTHER
aws_secret_access_key = of another
aws_session_token = token
"""
CONFIG = """
[default]
region = eu-west-1
output = json
[profile other]
region = ap-south-1
[profile whole]
aws_access_key_id = AKIDWHOLE
aws_secret_access_key = of the configuration
region = us-west-1
[profile nowhere]
region =
[profile role]
role_arn = arn:aws:iam::123456789012:role/reader
source_profile = default
[profile process]
credential_process = echo '{"Version": 1, "AccessKeyId": "AKIDPROCESS", "SecretAccessKey": "s", "SessionToken": "t"}'
region = eu-west-3
[profile local]
endpoint_url = http://127.0.0.1:9000
[profile virtual]
region = us-west-1
s3 =
    addressing_style = virtual
"""

# Options, variables, whether there are files.
PLAIN = {
    "keys": ({**KEYS, "endpoint_url": OWN}, {}, False),
    "a session": ({**KEYS, "token": "a/token+of=it", "endpoint_url": OWN}, {}, False),
    "keys of an option beside those of the environment": ({**KEYS, "endpoint_url": OWN}, OF_ENVIRONMENT, True),
    "an endpoint with a slash at the end": ({**KEYS, "endpoint_url": f"{OWN}/"}, {}, False),
    "an endpoint with the port of its scheme": ({**KEYS, "endpoint_url": "https://minio.example:443"}, {}, False),
    "an endpoint among the client's": ({**KEYS, "client_kwargs": {"endpoint_url": OWN}}, {}, False),
    "an endpoint and a region": (
        {**KEYS, "endpoint_url": OWN, "client_kwargs": {"region_name": "eu-central-1"}},
        {"AWS_REGION": "us-east-2"},
        False,
    ),
    "the endpoint of the environment": (KEYS, {"AWS_ENDPOINT_URL": OWN}, False),
    "the endpoint of the environment for S3": (
        KEYS,
        {"AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_S3": OWN},
        False,
    ),
    "no region": (KEYS, {}, False),
    "a region that is none of Amazon's": ({**KEYS, "endpoint_url": OWN}, {"AWS_REGION": "auto"}, False),
    "a region of another provider": (
        {**KEYS, "endpoint_url": "https://nyc3.example", "client_kwargs": {"region_name": "us-west-004"}},
        {},
        False,
    ),
    "Amazon's own": (KEYS, {"AWS_REGION": "us-west-2"}, False),
    "Amazon's first region": (KEYS, {"AWS_DEFAULT_REGION": "us-east-1"}, False),
    "two regions of the environment": (KEYS, {"AWS_DEFAULT_REGION": "us-west-2", "AWS_REGION": "eu-west-3"}, False),
    "keys of the environment": ({"anon": False, "endpoint_url": OWN}, OF_ENVIRONMENT, False),
    "a session of the environment": ({"endpoint_url": OWN}, {**OF_ENVIRONMENT, "AWS_SESSION_TOKEN": "token"}, False),
    "keys of the environment beside files": ({}, {**OF_ENVIRONMENT, "AWS_PROFILE": "other"}, True),
    "the usual profile": ({}, {}, True),
    "the usual profile by its name": ({}, {"AWS_PROFILE": "default"}, True),
    "a profile": ({}, {"AWS_PROFILE": "other"}, True),
    "a profile in the configuration alone": ({"endpoint_url": OWN}, {"AWS_PROFILE": "whole"}, True),
    "blank variables": (
        {"endpoint_url": OWN},
        {"AWS_PROFILE": "", "AWS_DEFAULT_PROFILE": " ", "AWS_ENDPOINT_URL": "", "AWS_USE_FIPS_ENDPOINT": ""},
        True,
    ),
    "few attempts": ({**KEYS, "endpoint_url": OWN}, {"AWS_MAX_ATTEMPTS": "2"}, False),
    "an option's profile beside keys of the environment": ({"profile": "other"}, OF_ENVIRONMENT, True),
    "a process": ({}, {"AWS_PROFILE": "process"}, True),
    "a process beside keys of the environment": ({"profile": "process"}, OF_ENVIRONMENT, True),
    "a process of another profile": ({"profile": "process", **KEYS, "endpoint_url": OWN}, {}, True),
    "no login at all": ({"anon": True, "endpoint_url": OWN}, {}, False),
    "no login in spite of one": ({"anon": True, "endpoint_url": OWN, **KEYS}, OF_ENVIRONMENT, True),
}
OTHER = {
    "half a login": ({"key": "AKID", "endpoint_url": OWN}, {}, False),
    "half a login beside another": ({"key": "AKID", "endpoint_url": OWN}, OF_ENVIRONMENT, False),
    "half a login of the environment": ({"endpoint_url": OWN}, {"AWS_ACCESS_KEY_ID": "AKID"}, True),
    "two endpoints": ({**KEYS, "client_kwargs": {"endpoint_url": "http://a:1"}, "endpoint_url": OWN}, {}, False),
    "a region that is a name for none": ({**KEYS, "endpoint_url": OWN}, {"AWS_REGION": "aws-global"}, False),
    "a region that is another": ({**KEYS, "endpoint_url": OWN}, {"AWS_REGION": "fips-us-east-1"}, False),
    "a region in capitals": ({**KEYS, "endpoint_url": OWN}, {"AWS_REGION": "US-East-1"}, False),
    "a region of Amazon's that is not known": (KEYS, {"AWS_REGION": "auto"}, False),
    "another partition": (KEYS, {"AWS_REGION": "cn-north-1"}, False),
    "a path in the endpoint": ({**KEYS, "endpoint_url": f"{OWN}/s3"}, {}, False),
    "a user in the endpoint": ({**KEYS, "endpoint_url": "http://user@127.0.0.1"}, {}, False),
    "Amazon's name in the endpoint": (
        {**KEYS, "endpoint_url": "https://bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com"},
        {},
        False,
    ),
    "an unknown option": ({**KEYS, "endpoint_url": OWN, "sceret": "x"}, {}, False),
    "an option of botocore's": ({**KEYS, "endpoint_url": OWN, "config_kwargs": {"s3": {}}}, {}, False),
    "an unknown option of the client": ({**KEYS, "endpoint_url": OWN, "client_kwargs": {"use_ssl": True}}, {}, False),
    "an empty key beside keys of the environment": (
        {"key": "", "secret": "", "endpoint_url": OWN},
        OF_ENVIRONMENT,
        True,
    ),
    "an empty endpoint beside that of the environment": (
        {**KEYS, "endpoint_url": ""},
        {"AWS_ENDPOINT_URL": OWN},
        False,
    ),
    "an empty region": (KEYS, {"AWS_PROFILE": "nowhere"}, True),
    "a proxy": ({**KEYS, "endpoint_url": OWN}, {"HTTP_PROXY": "http://127.0.0.1:9"}, False),
    "a proxy in lower case": ({**KEYS, "endpoint_url": OWN}, {"https_proxy": "http://127.0.0.1:9"}, False),
    "a proxy for everything": ({**KEYS, "endpoint_url": OWN}, {"ALL_PROXY": "http://127.0.0.1:9"}, False),
    "certificates that are not there": ({**KEYS, "endpoint_url": OWN}, {"AWS_CA_BUNDLE": "/absent.pem"}, False),
    "unverified TLS": ({**KEYS, "endpoint_url": OWN, "client_kwargs": {"verify": False}}, {}, False),
    "an option of a wrong type": ({**KEYS, "endpoint_url": 9000}, {}, False),
    "a switch of a wrong type": ({**KEYS, "endpoint_url": OWN, "anon": "no"}, {}, False),
    "client options of a wrong type": ({**KEYS, "endpoint_url": OWN, "client_kwargs": [1]}, {}, False),
    "an unknown variable": ({**KEYS, "endpoint_url": OWN}, {"AWS_USE_FIPS_ENDPOINT": "true"}, False),
    "the configuration of fsspec": ({"endpoint_url": OWN}, {"FSSPEC_S3_KEY": "AKID"}, False),
    "attempts that are no number": ({**KEYS, "endpoint_url": OWN}, {"AWS_MAX_ATTEMPTS": "few"}, False),
    "no attempts": ({**KEYS, "endpoint_url": OWN}, {"AWS_MAX_ATTEMPTS": "0"}, False),
    "an endpoint of the configuration": (KEYS, {"AWS_PROFILE": "local", "AWS_REGION": "us-west-1"}, True),
    "a style of the configuration": (KEYS, {"AWS_PROFILE": "virtual"}, True),
    "an unknown profile": (KEYS, {"AWS_PROFILE": "none", "AWS_REGION": "us-west-1"}, True),
}


def by_botocore(options):
    return BotocoreLogin(filled_options(options, set_variables())).login()


@pytest.fixture
def prepared(monkeypatch, tmp_path):
    """Set variables, and make files of the user's; return the options."""

    def prepare(options, variables, has_files):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if has_files:
            for name, text in (("AWS_SHARED_CREDENTIALS_FILE", CREDENTIALS), ("AWS_CONFIG_FILE", CONFIG)):
                (tmp_path / name).write_text(text)
                monkeypatch.setenv(name, str(tmp_path / name))
        return options

    return prepare


@pytest.mark.parametrize("case", PLAIN)
def test_it_is_the_login_that_botocore_finds(prepared, case):
    options = prepared(*PLAIN[case])
    login, other = plain_login(options, set_variables()), by_botocore(options)
    assert login is not None
    for bucket in ("bucket", "a-bucket-2"):
        for region in (None, "eu-north-1"):
            assert login.place_of(bucket, region)[:3] == other.place_of(bucket, region)[:3]
    assert (login.keys and login.keys()) == (other.keys and other.keys())
    assert login.server.removesuffix(":443") == other.server.removesuffix(":443")
    names = ("ca_file", "most_attempts", "settings", "headers", "proxies", "client_cert", "has_checksums")
    assert [getattr(login, name) for name in names] == [getattr(other, name) for name in names]


@pytest.mark.parametrize(
    ("options", "variables", "has_files"),
    [
        ({"endpoint_url": OWN}, {"AWS_EC2_METADATA_DISABLED": "true"}, False),
        ({"endpoint_url": OWN}, {"AWS_ROLE_ARN": "arn", "AWS_EC2_METADATA_DISABLED": "true"}, False),
    ],
)
def test_without_keys_the_error_is_that_of_botocore(prepared, monkeypatch, tmp_path, options, variables, has_files):
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    login = plain_login(prepared(options, variables, has_files), set_variables())
    with pytest.raises(NoCredentialsError):
        login.keys()


def test_a_role_is_requested_from_the_session(prepared):
    login = plain_login(prepared({}, {"AWS_PROFILE": "role"}, True), set_variables())
    assert login.keys.func is keys_of_session


@pytest.mark.parametrize("case", OTHER)
def test_what_is_not_plain_is_left_to_botocore(prepared, case):
    assert plain_login(prepared(*OTHER[case]), set_variables()) is None


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"client_kwargs": {"verify": "ca.pem"}}, {"AWS_CA_BUNDLE": "/other.pem", "SSL_CERT_FILE": "/third.pem"}),
        ({}, {"AWS_CA_BUNDLE": "ca.pem", "SSL_CERT_FILE": "/third.pem"}),
        ({}, {"SSL_CERT_FILE": "ca.pem"}),
    ],
)
def test_certificates_are_those_that_the_other_client_trusts(prepared, tmp_path, monkeypatch, options, variables):
    monkeypatch.chdir(tmp_path)
    shutil.copy(default_ca_file(), tmp_path / "ca.pem")
    options = prepared({**KEYS, "endpoint_url": OWN, **options}, variables, False)
    assert plain_login(options, os.environ).ca_file == by_botocore(options).ca_file == "ca.pem"


@pytest.mark.parametrize("bucket", ["Upper", "under_score", "dots..two", "a--x-s3", "arn:aws:s3:::x", "", "ab", ".."])
def test_an_unusual_bucket_is_left_to_botocore(prepared, bucket):
    for options, variables in (({"endpoint_url": OWN}, {}), ({}, {"AWS_REGION": "us-west-2"})):
        login = plain_login(prepared({**KEYS, **options}, variables, False), os.environ)
        assert login.place_of(bucket, None) is None


def test_a_directory_bucket_is_at_its_zone_and_needs_the_keys_of_a_session(prepared):
    options = prepared(
        {**KEYS, "config_kwargs": {"signature_version": "v4-s3express"}}, {"AWS_REGION": "us-west-2"}, False
    )
    place = by_botocore(options).place_of("w--usw2-az1--x-s3", None)
    assert place.url == "https://w--usw2-az1--x-s3.s3express-usw2-az1.us-west-2.amazonaws.com"
    assert (place.region, place.service, place.signature) == ("us-west-2", "s3express", "v4-s3express")
    with pytest.raises(UsageError, match="needs the keys of a session"):
        by_botocore(KEYS).place_of("w--usw2-az1--x-s3", None)


@pytest.mark.parametrize("bucket", ["with.dots", "xn--name", "an-s3alias"])
def test_the_bucket_of_a_host_name_of_its_own_is_left_to_botocore(prepared, bucket):
    login = plain_login(prepared(KEYS, {"AWS_REGION": "us-west-2"}, False), os.environ)
    assert login.place_of(bucket, None) is None


@pytest.mark.parametrize("text", ["[default\nregion=x", "region=x", "[default]\nregion=a\nregion=b", "\xff"])
def test_a_file_that_cannot_be_understood_is_left_to_botocore(prepared, tmp_path, monkeypatch, text):
    options = prepared({**KEYS, "endpoint_url": OWN}, {}, True)
    (tmp_path / "AWS_CONFIG_FILE").write_bytes(text.encode("latin-1"))
    assert plain_login(options, os.environ) is None


def test_two_sections_of_one_profile_are_left_to_botocore(prepared, tmp_path):
    options = prepared({**KEYS, "endpoint_url": OWN}, {}, True)
    (tmp_path / "AWS_CONFIG_FILE").write_text("[default]\nregion=eu-west-1\n[profile default]\nregion=eu-west-2\n")
    assert plain_login(options, os.environ) is None


def test_what_the_program_configures_in_fsspec_counts(prepared, monkeypatch):
    options = prepared({**KEYS, "endpoint_url": OWN}, {}, False)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"token": "configured"})
    assert plain_login(options, os.environ) is None


def test_no_key_is_shown(prepared):
    login = plain_login(prepared({**KEYS, "token": "T0KEN", "endpoint_url": OWN}, {}, False), os.environ)
    assert not {"AKIDOPTION", "of the options", "T0KEN"} & {*repr(login).replace("'", " ").split()}
    assert "of the options" not in repr(login)
