"""What a status becomes."""

from __future__ import annotations

from each_row import each_row

from streamer.backends.http.errors import refusal
from streamer.core import errors


@each_row(
    ("status", "body", "expected"),
    [
        (401, b"", errors.CredentialsError),
        (403, b"", errors.AccessDeniedError),
        (
            403,
            b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
            errors.CredentialsError,
        ),
        (404, b"", errors.ObjectNotFoundError),
        (407, b"", errors.CredentialsError),
        (410, b"", errors.ObjectNotFoundError),
        (416, b"", errors.RangeResponseError),
        (429, b"", errors.HttpStatusError),
        (500, b"", errors.HttpStatusError),
        (304, b"", errors.HttpStatusError),
    ],
)
def test_each_status_has_its_class(status, body, expected):
    error = refusal(status, {}, body, "uri")
    assert type(error) is expected
    assert error.status == status


def test_a_refusal_carries_the_storages_code_and_request_id_and_no_other_text():
    body = b"<Error><Code>AccessDenied</Code><Message>canary</Message></Error>"
    error = refusal(403, {"X-Amz-Request-Id": "R1", "X-Other": "canary"}, body, "uri", attempts=2, elapsed_s=1.0)
    assert (error.code, error.request_id, error.attempts) == ("AccessDenied", "R1", 2)
    assert "canary" not in str(error)
    assert refusal(403, {"x-request-id": "two words"}, b"<Code>a b</Code>", "uri").request_id is None
