"""What a server demands in a moment's trouble is done: each demand, at each step of a write, on each storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from itertools import count
from typing import Any

import pytest
import torch
from each_row import each_row
from servers.writable import Answer, Gcs, Sent, Storage, error_of, writable

import streamer
from streamer.core.outages.transient import STATUSES, asks_for_another_attempt

SMALL = {"a": torch.arange(64, dtype=torch.float32)}
LARGE = {"a": torch.arange(3 << 18, dtype=torch.float32)}  # 3 MiB: sent in parts
TWO_PARTS = {"a": torch.arange(5 << 20, dtype=torch.float32)}  # 20 MiB

# By storage: the steps of a write, with what is written, and the answers that ask for another attempt.
STEPS = {
    "s3": {"create": LARGE, "part": LARGE, "complete": LARGE, "put": SMALL},
    "gcs": {"create": LARGE, "part": LARGE},
    "azure": {"part": LARGE, "complete": LARGE},
    "web": {"put": SMALL},
}
DEMANDS = {
    "s3": [
        *[(400, each) for each in ("RequestTimeout", "BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch")],
        *[(409, each) for each in ("ConditionalRequestConflict", "OperationAborted")],
        *[(403, "RequestLimitExceeded"), (500, "InternalError"), (503, "SlowDown"), (408, ""), (429, "")],
        (200, "InternalError"),
    ],
    "gcs": [(403, "rateLimitExceeded"), (429, "rateLimitExceeded"), (408, ""), (503, "backendError"), (500, "")],
    "azure": [(400, "Md5Mismatch"), (503, "ServerBusy"), (500, "OperationTimedOut"), (408, ""), (502, "")],
    "web": [(408, ""), (429, ""), (500, ""), (503, "")],
}


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.backends.client.retry.PAUSE_S", 0.0)
    monkeypatch.setattr("streamer.backends.gcs.upload.PAUSE_S", 0.0)


def once(storage: Storage, step: str, answer: Callable[[Sent], Answer | None]) -> None:
    """Make the first request of a step get another answer."""
    asked = count()
    storage.script = lambda sent: answer(sent) if sent.step == step and next(asked) == 0 else None


def saved(storage: Storage, tensors: dict[str, torch.Tensor], **how: Any) -> None:
    """Save, and compare what is there."""
    uri, options = storage.uri("m.safetensors"), storage.options()
    streamer.save(tensors, uri, storage_options=options, progress=False, digests=False, **how)
    data = next(content for content, _ in storage.objects.values())
    assert data.endswith(tensors["a"].numpy().tobytes())


@pytest.mark.parametrize(("kind", "step"), [(kind, step) for kind, steps in STEPS.items() for step in steps])
def test_every_demand_is_obeyed_at_every_step_of_a_write(kind: str, step: str) -> None:
    with writable(kind) as storage:
        for demand in DEMANDS[kind]:
            storage.objects.clear()
            once(storage, step, lambda _, demand=demand: error_of(storage, *demand))
            saved(storage, STEPS[kind][step])
            assert kind == "gcs" or not any(storage.uploads.values()), demand


@each_row(("kind", "step"), [(kind, step) for kind, steps in STEPS.items() for step in steps])
def test_a_503_whose_request_was_carried_out_is_no_failure(kind: str, step: str) -> None:
    with writable(kind) as storage:
        once(storage, step, lambda sent: (storage.answered(sent), error_of(storage, 503))[1])
        saved(storage, STEPS[kind][step])


def test_reads_and_writes_ask_one_table() -> None:
    assert {408, 429, 500, 502, 503, 504} == STATUSES
    assert all(asks_for_another_attempt(*each) for demands in DEMANDS.values() for each in demands)
    for status, code in ((400, "InvalidTag"), (403, "AccessDenied"), (409, "BucketNotEmpty"), (412, ""), (413, "")):
        assert not asks_for_another_attempt(status, code)


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
def test_a_409_that_stays_does_not_blame_another_program(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.core.outages.outage_waits.LIMIT_OF_ONE_REQUEST_S", 0.2)
    with writable("s3") as storage:
        storage.script = lambda sent: error_of(storage, 409, code) if sent.step == "put" else None
        with pytest.raises(streamer.HttpStatusError, match=code):
            saved(storage, SMALL)
        assert not storage.objects


def test_a_409_beside_the_object_of_another_program_names_that_program() -> None:
    def written_by_another(sent: Sent) -> Answer:
        storage.objects[sent.name] = b"theirs", {"ETag": '"t"'}
        return error_of(storage, 409, "ConditionalRequestConflict")

    with writable("s3") as storage:
        once(storage, "put", written_by_another)
        with pytest.raises(streamer.ChangedError, match="another program"):
            saved(storage, SMALL)


@each_row("status", [400, 403])
@each_row("step", ["create", "part", "complete"])
def test_the_clock_of_the_server_is_learnt_at_every_step_of_a_write(step: str, status: int) -> None:
    with writable("s3") as storage:
        times: list[str] = []

        def skewed(sent: Sent) -> Answer | None:
            if sent.step != step:
                return None
            times.append(sent.query.get("X-Amz-Date") or sent.headers["x-amz-date"])
            if len(times) > 1:
                return None
            refused = error_of(storage, status, "RequestTimeTooSkewed")
            return refused._replace(headers={**refused.headers, "Date": formatdate(time.time() + 7200, usegmt=True)})

        storage.script = skewed
        saved(storage, LARGE)
        assert times[0][:11] != times[1][:11]  # another hour


@each_row(("at", "kept"), [(0, 0), (1, 0), (2, 0), (0, 1 << 20), (1, 1 << 18), (2, 1 << 16)])
def test_bytes_that_google_has_lost_are_sent_again(at: int, kept: int) -> None:
    with writable("gcs") as storage:
        asked = count()

        def forgetful(sent: Sent) -> Answer | None:
            if sent.step != "part" or next(asked) != at:
                return None
            data = storage.uploads[sent.query["upload_id"]]["data"]
            data += sent.body[: min(kept, len(sent.body) // 2)]
            return Answer(308, {"Range": f"bytes=0-{len(data) - 1}"} if data else {})

        storage.script = forgetful
        saved(storage, TWO_PARTS)


@pytest.mark.parametrize("status", [404, 410])
def test_a_session_of_google_that_is_lost_at_its_first_bytes_begins_again(status: int) -> None:
    with writable("gcs") as storage:
        once(storage, "part", lambda _: error_of(storage, status, "gone"))
        saved(storage, SMALL)


@pytest.mark.parametrize(("kind", "code"), [("gcs", "notFound"), ("s3", "NoSuchUpload")])
def test_a_lost_session_is_not_called_a_lost_bucket_regression(kind: str, code: str) -> None:
    with writable(kind) as storage:
        asked = count()
        lost = error_of(storage, 404, code)
        storage.script = lambda sent: lost if sent.step == "part" and next(asked) else None
        with pytest.raises(streamer.StorageError, match="no longer has this upload") as caught:
            saved(storage, TWO_PARTS)
        assert not isinstance(caught.value, streamer.ObjectNotFoundError | streamer.ChangedError)
        assert not storage.objects


@each_row(("kind", "step"), [(kind, step) for kind, steps in STEPS.items() for step in steps])
def test_a_proxy_that_takes_no_large_body_is_named_with_what_to_do(kind: str, step: str) -> None:
    with writable(kind) as storage:
        page = Answer(413, {"Content-Type": "text/html"}, b"<html>413 Request Entity Too Large</html>")
        storage.script = lambda sent: page if sent.step == step else None
        with pytest.raises(streamer.StorageError, match="client_max_body_size"):
            saved(storage, STEPS[kind][step])


@pytest.mark.parametrize("tensors", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("status", [307, 308])
def test_a_put_is_sent_where_a_redirect_leads_without_the_login(status: int, tensors: dict[str, Any]) -> None:
    with writable("web") as pool, writable("web") as door:

        def redirected(sent: Sent) -> Answer | None:
            is_of_pool = sent.method in ("PUT", "DELETE") or sent.name in pool.objects
            return Answer(status, {"Location": f"{pool.url}/{sent.name}"}) if is_of_pool else None

        door.script = redirected
        options = {"headers": {"Authorization": "Bearer secret"}}
        streamer.save(tensors, door.uri("m.safetensors"), storage_options=options, progress=False)
        assert set(pool.objects) == {"bkt/m.safetensors", "bkt/m.safetensors.manifest.json"}
        assert not any("authorization" in sent.headers for sent in pool.log)


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_does_not_keep_a_put_is_an_error_that_names_the_place(status: int) -> None:
    with writable("web") as door:
        place = {"Location": "https://pool.example:8443/f?token=S3CR3TS3CR3TS3CR3T"}
        door.script = lambda sent: Answer(status, place) if sent.method == "PUT" else None
        with pytest.raises(streamer.RedirectError, match=r"pool\.example:8443") as caught:
            saved(door, SMALL)
        assert "S3CR3T" not in str(caught.value)


def test_a_put_in_a_circle_of_redirects_ends() -> None:
    with writable("web") as door:
        door.script = lambda sent: Answer(307, {"Location": door.uri("x")}) if sent.method == "PUT" else None
        with pytest.raises(streamer.RedirectError, match="more than 5 times"):
            saved(door, SMALL)


def test_metadata_of_an_object_that_names_an_error_is_no_error() -> None:
    with writable("gcs") as storage:
        assert isinstance(storage, Gcs)
        saved(storage, SMALL)
        data, about = storage.objects["bkt/m.safetensors"]
        storage.objects["bkt/m.safetensors"] = data, {**about, "metadata": '{"reason": "backendError"}'}
        storage.log.clear()
        streamer.load(storage.uri("m.safetensors"), storage_options=storage.options(), progress=False)
        assert sum(sent.step == "head" for sent in storage.log) == 1
