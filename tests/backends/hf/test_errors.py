"""What the Hub's answers become."""

from __future__ import annotations

from each_row import each_row

from streamer.backends.hf.client import refusal
from streamer.core import errors


@each_row(
    ("status", "code", "has_token", "expected"),
    [
        (401, "GatedRepo", False, errors.AccessDeniedError),
        (403, "GatedRepo", True, errors.AccessDeniedError),
        (404, "RepoNotFound", True, errors.ObjectNotFoundError),
        (401, "RepoNotFound", True, errors.ObjectNotFoundError),
        (401, None, False, errors.ObjectNotFoundError),
        (401, None, True, errors.CredentialsError),
        (404, "RevisionNotFound", False, errors.ObjectNotFoundError),
        (404, "EntryNotFound", False, errors.ObjectNotFoundError),
        (404, None, False, errors.ObjectNotFoundError),
        (403, None, True, errors.AccessDeniedError),
        (429, None, False, errors.HttpStatusError),
        (503, None, False, errors.HttpStatusError),
    ],
)
def test_each_code_has_its_class_and_is_carried(status, code, has_token, expected):
    headers = {"x-error-message": "canary", "X-Request-Id": "R1"} | ({"x-error-code": code} if code else {})
    error = refusal(status, headers, b"canary", "hf://a/b", has_token=has_token)
    assert type(error) is expected
    assert (error.status, error.code, error.request_id) == (status, code, "R1")
    assert "canary" not in str(error)


def test_a_disabled_repository_says_so():
    headers = {"x-error-message": "Access to this resource is disabled."}
    assert "disabled" in str(refusal(403, headers, b"", "hf://a/b", has_token=True))
