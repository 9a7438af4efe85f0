"""Which requests carry which option, as a table for each storage; an option that no request carries is refused."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import datetime, timezone
from hashlib import md5
from typing import Any

import botocore.session
import pytest
import torch
from each_row import each_row
from servers.writable import Sent, Storage, error_of, writable

import streamer
from streamer.backends.s3.requests import OF_REQUESTS
from streamer.plugins.registry import open_store

SMALL = {"a": torch.arange(64, dtype=torch.float32)}
LARGE = {"a": torch.arange(3 << 18, dtype=torch.float32)}  # 3 MiB: sent in parts
LATER = datetime(2027, 1, 2, tzinfo=timezone.utc)

# The steps of the requests of S3, by botocore's names.
OPERATIONS = {
    "create": "CreateMultipartUpload",
    "part": "UploadPart",
    "complete": "CompleteMultipartUpload",
    "abort": "AbortMultipartUpload",
    "put": "PutObject",
    "delete": "DeleteObject",
    "head": "HeadObject",
    "read": "GetObject",
    "list": "ListObjectsV2",
}
VALUES: dict[str, Any] = {
    **{name: name.lower() for name in OF_REQUESTS},
    **dict.fromkeys(("BucketKeyEnabled", "BypassGovernanceRetention"), True),
    **dict.fromkeys(("Expires", "ObjectLockRetainUntilDate"), LATER),
    "ACL": "private",
    "Metadata": {"team": "a"},
    "RequestPayer": "requester",
    "SSECustomerKey": "k" * 32,
}
DEFAULT_TYPE = "application/octet-stream"
MODEL = botocore.session.get_session().get_service_model("s3")


def every_step(storage: Storage, options: dict[str, Any]) -> list[Sent]:
    """Save, load, list, fail and remove, so that each kind of request is sent; return the requests."""
    how: dict[str, Any] = {"storage_options": options, "progress": False}
    for name, tensors in (("small", SMALL), ("large", LARGE)):
        streamer.save(tensors, storage.uri(f"{name}.safetensors"), **how, digests=False)
        streamer.load(storage.uri(f"{name}.safetensors"), **how)
    storage.script = lambda sent: error_of(storage, 403, "Forbidden") if sent.step == "complete" else None
    if storage.scheme == "s3":
        with pytest.raises(streamer.AccessDeniedError):
            streamer.save(LARGE, storage.uri("new.safetensors"), **how)
    storage.script = lambda _: None
    store: Any = open_store(storage.uri("small.safetensors"), options)
    store.remove(store.root)
    if storage.scheme:
        store.find(store.root.rpartition("/")[0])
    return storage.log


def carries(sent: Sent, name: str) -> bool:
    """Whether a request has a header, or a parameter of its query, of this name."""
    values = sent.headers | {each.lower(): value for each, value in sent.query.items()}
    return values.get(name.lower(), DEFAULT_TYPE) != DEFAULT_TYPE


def assert_table(log: list[Sent], step: str, name: str, *, is_carried: bool) -> None:
    """Compare all requests of one step with the table."""
    of_step = [sent for sent in log if sent.step == step]
    assert of_step, f"no {step} was sent"
    assert {carries(sent, name) for sent in of_step} == {is_carried}, f"{name} in {step}"


@pytest.mark.parametrize("token", ["", "t" * 6000], ids=["signed URLs", "signed headers"])
def test_each_request_to_s3_carries_the_settings_that_its_operation_has(token: str) -> None:
    with writable("s3") as storage:
        settings = {"s3_additional_kwargs": VALUES} | ({"token": token} if token else {})
        log = every_step(storage, {**storage.options(), **settings})
    for step, operation in OPERATIONS.items():
        members = MODEL.operation_model(operation).input_shape.members
        for name in OF_REQUESTS - {"Metadata"}:
            shape = next(m.members[name] for m in map(_input_of, OPERATIONS.values()) if name in m.members)
            assert_table(log, step, shape.serialization["name"], is_carried=name in members)
        assert_table(log, step, "x-amz-meta-team", is_carried="Metadata" in members)
    assert not token or not any("X-Amz-Signature" in sent.query for sent in log)


@pytest.mark.parametrize("key", ["k" * 32, b"\xff" * 32, bytearray(b"k" * 32)])
def test_a_customers_key_is_encoded_in_each_request_to_s3_regression(key: str | bytes) -> None:
    settings = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
    with writable("s3") as storage:
        options = {**storage.options(), "s3_additional_kwargs": settings}
        log = every_step(storage, options)
        storage.script = lambda sent: error_of(storage, 403, "AccessDenied") if sent.step == "parts" else None
        for name in ("a", "b"):
            tensors = {name: LARGE["a"]}
            how: dict[str, Any] = {"storage_options": options, "progress": False, "overwrite": True}
            streamer.save(tensors, storage.uri("again.safetensors"), **how)
    data = key.encode() if isinstance(key, str) else bytes(key)
    wanted = b64encode(data).decode(), b64encode(md5(data, usedforsecurity=False).digest()).decode()
    prefix = "x-amz-server-side-encryption-customer-key"
    sent = {(each.step, (each.headers.get(prefix), each.headers.get(f"{prefix}-md5"))) for each in log}
    assert {step for step, found in sent if found == wanted} >= {
        "create",
        "part",
        "parts",
        "put",
        "head",
        "read",
    }
    assert {found for _, found in sent} == {wanted, (None, None)}


def _input_of(operation: str) -> Any:
    return MODEL.operation_model(operation).input_shape


def test_requester_pays_is_sent_in_each_request_to_s3() -> None:
    with writable("s3") as storage:
        log = every_step(storage, {**storage.options(), "requester_pays": True})
    assert all(sent.headers["x-amz-request-payer"] == "requester" for sent in log)


@each_row(
    "name",
    ["Acl", "SSEKMSKeyID", "Bucket", "Body", "ContentEncoding", "ChecksumAlgorithm", "IfMatch", "Range", "VersionId"],
)
def test_a_setting_that_no_request_to_s3_can_carry_is_refused_before_the_first(name: str) -> None:
    assert_refused("s3", {"s3_additional_kwargs": {name: "x"}}, name)


# By storage: an option, and what shows it in each request.
ON_ALL: list[tuple[str, dict[str, Any], Callable[[Sent], bool]]] = [
    ("gcs", {"requester_pays": "billed"}, lambda sent: sent.query.get("userProject") == "billed"),
    ("gcs", {"session_kwargs": {"headers": {"x-team": "a"}}}, lambda sent: sent.headers.get("x-team") == "a"),
    ("web", {"headers": {"x-team": "a"}}, lambda sent: sent.headers.get("x-team") == "a"),
    ("web", {"client_kwargs": {"headers": {"x-team": "a"}}}, lambda sent: sent.headers.get("x-team") == "a"),
    ("web", {"auth": ("user", "word")}, lambda sent: sent.headers.get("authorization") == "Basic dXNlcjp3b3Jk"),
    ("web", {"cookies": {"a": "b"}}, lambda sent: sent.headers.get("cookie") == "a=b"),
    ("azure", {"timeout": 77}, lambda sent: sent.step == "read" or sent.query.get("timeout") == "77"),
    ("s3", {"config_kwargs": {"user_agent": "mine/1"}}, lambda sent: sent.headers["user-agent"] == "mine/1"),
    ("s3", {"token": "abc"}, lambda sent: carries(sent, "x-amz-security-token")),
]


@each_row(("kind", "options", "shows"), ON_ALL)
def test_all_requests_carry_the_option(kind: str, options: dict[str, Any], shows: Callable[[Sent], bool]) -> None:
    with writable(kind) as storage:
        log = every_step(storage, {**storage.options(), **options})
    assert {sent.step for sent in log} >= {"read", "delete"} | ({"part", "head"} if storage.scheme else {"put"})
    assert [sent.step for sent in log if not shows(sent)] == []


@each_row(
    ("kind", "name"),
    [
        *[("gcs", each) for each in ("kms_key_name", "predefined_acl", "fixed_key_metadata", "content_type", "acl")],
        *[("azure", each) for each in ("metadata", "tags", "encryption_scope", "standard_blob_tier", "cpk")],
        *[("s3", each) for each in ("ServerSideEncryption", "acl", "Tagging", "ExpectedBucketOwner")],
        *[("web", each) for each in ("content_type", "put_headers")],
    ],
)
def test_an_option_that_the_storage_does_not_have_is_refused_before_the_first_request(kind: str, name: str) -> None:
    assert_refused(kind, {name: "x"}, name)


@pytest.mark.parametrize("value", ["secondary", "other"])
def test_the_second_location_of_an_azure_account_is_not_silently_the_first(value: str) -> None:
    assert_refused("azure", {"location_mode": value}, "location_mode")


def assert_refused(kind: str, options: dict[str, Any], name: str) -> None:
    """Save and load; both name the option before anything is sent."""
    with writable(kind) as storage:
        uri, how = storage.uri("m.safetensors"), {"storage_options": {**storage.options(), **options}}
        with pytest.raises(streamer.OptionError, match=name):
            streamer.save(SMALL, uri, **how, progress=False)
        with pytest.raises(streamer.OptionError, match=name):
            streamer.load(uri, **how, progress=False)
        assert storage.log == []
