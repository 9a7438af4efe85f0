"""Whatever a server answers while a checkpoint is looked for, the error is of the tree, and the server's fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_row import each_row
from servers.places import Place, azure, base, gcs, hub, s3, web
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import Options
from streamer.backends.client.redirects import MAX_REDIRECTS
from streamer.core.errors import ConnectError, OptionError, StorageError, StreamerError
from streamer.plugins import open_store

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

SHARD = (2).to_bytes(8, "little") + b"{}"
QUICK = Options(max_attempts=1, block_deadline_s=0.5, deadline_s=30)
LATIN = "caf\xe9"  # http.server sends it as one byte, which no UTF-8 is

Script = Callable[[Request, Answer], None]


def failure(place: Place, script: Script) -> StreamerError:
    """Load what is there, and return the error."""
    with ScriptedServer(SHARD, script) as server:
        uri, storage_options = place(server)
        with pytest.raises(StreamerError) as caught:
            streamer.load(uri, storage_options=storage_options, options=QUICK)
    str(caught.value).encode()  # any log can take it
    return caught.value


def is_the_servers_fault(error: StreamerError) -> bool:
    return (
        isinstance(error, StorageError) and not isinstance(error, OptionError) and "storage options" not in str(error)
    )


# --- web servers ------------------------------------------------------------------------------------------------------


def test_a_connection_that_is_cut_behind_the_header_of_a_probe() -> None:
    def script(request: Request, answer: Answer) -> None:
        answer.sent_bytes = 0

    assert isinstance(failure(web, script), ConnectError)


@pytest.mark.parametrize("total", ["9" * 4400, str(1 << 64), str(1 << 63), "-1", "*"])
def test_a_total_that_no_file_has(total: str) -> None:
    def script(request: Request, answer: Answer) -> None:
        answer.headers["Content-Range"] = f"bytes 0-0/{total}"

    assert is_the_servers_fault(failure(web, script))


@pytest.mark.parametrize("page", [b"<![x]>", b'<a href="a.safetensors">a</a><![%s]><a href="b.safetensors">'])
def test_an_index_page_that_pythons_parser_gives_up(page: bytes) -> None:
    def script(request: Request, answer: Answer) -> None:
        answer.become(200, page, Content_Type="text/html")

    def folder(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
        return f"{base(server)}/folder", {}

    assert is_the_servers_fault(failure(folder, script))


def test_an_etag_that_is_not_ascii_is_ignored() -> None:
    def script(request: Request, answer: Answer) -> None:
        answer.headers["ETag"] = f'"{LATIN}"'

    with ScriptedServer(SHARD, script) as server:
        assert streamer.load(web(server)[0]) == {}


@each_row("status", [404, 500])
@each_row("place", [web, s3, gcs, hub, azure])
def test_a_request_id_that_is_not_of_ascii_is_left_out(place: Place, status: int) -> None:
    def script(request: Request, answer: Answer) -> None:
        names = ("x-amz-request-id", "x-ms-request-id", "X-GUploader-UploadID", "x-ms-error-code", "x-goog-generation")
        answer.become(status, b"", **dict.fromkeys(names, LATIN))

    error = failure(place, script)
    assert is_the_servers_fault(error)
    assert LATIN not in str(error)


def test_a_malformed_code_sent_to_the_engine_is_the_servers_fault() -> None:
    def script(request: Request, answer: Answer) -> None:
        if request.end - request.begin > 1:
            answer.become(403, b"<Error><Code>caf\xe9</Code></Error>", x_amz_request_id=LATIN)

    assert is_the_servers_fault(failure(web, script))


@pytest.mark.parametrize("location", ["http://[", "http://host:99999/", f"http://{LATIN}:port/", "http://\x7f/", "//"])
def test_a_redirect_to_what_is_no_url(location: str) -> None:
    def script(request: Request, answer: Answer) -> None:
        answer.become(302, Location=location)

    assert is_the_servers_fault(failure(web, script))


# --- listings ---------------------------------------------------------------------------------------------------------

BAD_SIZES = ["-1", str(1 << 63), str(1 << 64), "9" * 4400, "1e400", "1.5", "true", '""', "null", "[]"]


def gcs_listing(entry: str) -> bytes:
    return f'{{"items": [{entry}]}}'.encode()


def gcs_entry(size: str) -> str:
    return f'{{"name": "folder/a.safetensors", "size": {size}}}'


def hub_entry(size: str) -> str:
    return f'{{"type": "file", "path": "a.safetensors", "size": {size}}}'


def s3_listing(entry: str) -> bytes:
    return f"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>{entry}</Contents></ListBucketResult>".encode()


def s3_entry(size: str) -> str:
    return f"<Key>folder/a.safetensors</Key><Size>{size}</Size>"


def azure_listing(blob: str) -> bytes:
    return (
        '<?xml version="1.0"?><EnumerationResults ContainerName="container"><Blobs><Blob>'
        f"{blob}</Blob></Blobs><NextMarker/></EnumerationResults>"
    ).encode()


def azure_entry(size: str) -> str:
    properties = f"<Content-Length>{size}</Content-Length><BlobType>BlockBlob</BlobType>"
    return f"<Name>folder/a.safetensors</Name><Properties>{properties}</Properties>"


def answering(body: bytes, kind: str, **headers: str) -> Script:
    return lambda request, answer: answer.become(200, body, Content_Type=kind, **headers)


@each_row("size", [*BAD_SIZES, "Infinity", "-Infinity", "NaN"])
def test_a_size_that_no_file_has_in_a_listing_of_json(size: str) -> None:
    assert is_the_servers_fault(failure(gcs, answering(gcs_listing(gcs_entry(size)), "application/json")))
    assert is_the_servers_fault(failure(hub, answering(f"[{hub_entry(size)}]".encode(), "application/json")))


@each_row("size", ["-1", str(1 << 63), str(1 << 64), "9" * 4400, "1e400", "many", ""])
def test_a_size_that_no_file_has_in_a_listing_of_xml(size: str) -> None:
    assert is_the_servers_fault(failure(s3, answering(s3_listing(s3_entry(size)), "application/xml")))
    assert is_the_servers_fault(failure(azure, answering(azure_listing(azure_entry(size)), "application/xml")))


CUT_UTF8 = "größe".encode()[:3]
DOCUMENTS = {
    "nothing": b"",
    "cut UTF-8": b'{"items": [{"name": "' + CUT_UTF8 + b'", "size": 1}]}',
    "nested": b"[" * 100_000,
    "closed": b"[" * 5_000 + b"]" * 5_000,
    "a list": b"[1]",
    "a list of lists": b"[[]]",
    "entries that are a number": b'{"items": 1}',
    "entries that are numbers": b'{"items": [1]}',
    "a name that is a number": b'{"items": [{"name": 1, "size": 1}]}',
    "half a character": b'{"items": [{"name": "folder/\\ud800.safetensors", "size": 1}]}',
    "a token that is an object": b'{"items": [], "nextPageToken": {}}',
    "a token of half a character": b'{"items": [], "nextPageToken": "\\ud800"}',
    "a token that is a list": b'{"nextPageToken": [1]}',
    "a file without a path": b'[{"type": "file", "size": 1}]',
    "a path that is a number": b'[{"type": "file", "path": 1, "size": 1}]',
    "a path of half a character": b'[{"type": "file", "path": "\\udc00.safetensors", "size": 1}]',
    "a hash that is a number": b'[{"type": "file", "path": "a", "size": 1, "lfs": 1}]',
}


@each_row("name", DOCUMENTS)
@each_row("place", [gcs, hub])
def test_a_malformed_document_is_an_error(place: Place, name: str) -> None:
    assert is_the_servers_fault(failure(place, answering(DOCUMENTS[name], "application/json")))


@pytest.mark.parametrize("link", ["http://host:99999/", "http://host:port/", "http://[", "//[::1", f"http://{LATIN}/"])
def test_a_malformed_link_to_a_next_page_is_an_error(link: str) -> None:
    script = answering(b"[]", "application/json", Link=f'<{link}>; rel="next"')
    assert "leads to another server" in str(failure(hub, script))


@pytest.mark.parametrize("end", ["", "<a href='a.safetensors"])
def test_an_index_page_that_may_be_cut_is_no_whole_listing_regression(end: str) -> None:
    """Only its own end tells that a page without a length is complete: its shards after the cut were overlooked."""

    def script(request: Request, answer: Answer) -> None:
        answer.become(200, f"<html><a href='b.safetensors'>b</a>{end}".encode(), Content_Type="text/html")
        del answer.headers["Content-Length"]
        answer.sent_bytes = len(answer.body)  # and the connection is closed

    with ScriptedServer(SHARD, script) as server, pytest.raises(StorageError, match="may be truncated"):
        streamer.load(f"{base(server)}/folder", options=QUICK)


def test_an_index_page_without_a_length_is_whole_where_it_has_its_end() -> None:
    def script(request: Request, answer: Answer) -> None:
        if request.path.endswith("/"):
            answer.become(200, b"<html><a href='b.safetensors'>b</a></HTML>\n", Content_Type="text/html")
            del answer.headers["Content-Length"]
            answer.sent_bytes = len(answer.body)

    with ScriptedServer(SHARD, script) as server:
        assert streamer.load(f"{base(server)}/folder", options=QUICK) == {}


@pytest.mark.parametrize("truncated", ["", "<IsTruncated>false</IsTruncated>", "<IsTruncated>True</IsTruncated>"])
def test_a_listing_of_s3_goes_on_where_it_names_a_next_page_regression(truncated: str) -> None:
    """The first page was taken for the last if a server spells the mark otherwise, or leaves it out."""

    def page(name: str, rest: str) -> bytes:
        entry = f"<Contents><Key>folder/{name}.safetensors</Key><Size>10</Size></Contents>"
        return f"<ListBucketResult>{entry}{rest}</ListBucketResult>".encode()

    def script(request: Request, answer: Answer) -> None:
        rest = (
            ""
            if "continuation-token=b" in request.path
            else f"{truncated}<NextContinuationToken>b</NextContinuationToken>"
        )
        answer.become(200, page("a" if rest else "b", rest), Content_Type="application/xml")

    with ScriptedServer(SHARD, script) as server:
        uri, storage_options = s3(server)
        store = open_store(uri, storage_options)
        assert [info.path for info in store.find(store.root)] == [
            "bucket/folder/a.safetensors",
            "bucket/folder/b.safetensors",
        ]


TEXTS = {
    "nothing": b"",
    "no XML": b"not at all",
    "cut": b"<ListBucketResult><Contents>",
    "cut UTF-8": s3_listing(s3_entry("1")).replace(b"folder", CUT_UTF8),
    "no entry": s3_listing(""),
    "no name": s3_listing("<Size>1</Size>"),
    "no size": s3_listing("<Key>folder/a.safetensors</Key>"),
    "a date that is none": s3_listing(s3_entry("1") + "<LastModified>soon</LastModified>"),
    "truncated without a token": b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
    "a blob without a name": azure_listing("<Properties/>"),
    "a blob without properties": azure_listing("<Name>folder/a.safetensors</Name>"),
    "a blob with a date that is none": azure_listing(
        azure_entry("1").replace("<Content-Length>", "<Last-Modified>soon</Last-Modified><Content-Length>")
    ),
    "nested": b"<a>" * 100_000,
    "other": b"<html><body>Log in</body></html>",
    "JSON": b"{}",
}


@each_row("name", TEXTS)
@each_row("place", [s3, azure])
def test_a_malformed_listing_is_an_error(place: Place, name: str) -> None:
    assert is_the_servers_fault(failure(place, answering(TEXTS[name], "application/xml")))


@pytest.mark.parametrize("place", [s3, gcs, hub, azure])
def test_an_answer_that_is_cut(place: Place) -> None:
    def script(request: Request, answer: Answer) -> None:
        answer.become(200, b"{" * 100, Content_Type="application/json")
        answer.sent_bytes = 50

    assert isinstance(failure(place, script), ConnectError)


@pytest.mark.parametrize("place", [s3, azure])
def test_a_length_that_is_no_number_or_a_name_that_is_not_utf_8_is_an_error(place: Place) -> None:
    def script(request: Request, answer: Answer) -> None:
        answer.become(200, b"<a/>", ETag=LATIN, Date=LATIN, x_ms_request_id=LATIN)
        answer.headers["Content-Type"] = f"application/{LATIN}"

    assert is_the_servers_fault(failure(place, script))


# --- shapes -----------------------------------------------------------------------------------------------------------


@each_row("framework", ["pt", "np"])
@each_row("shape", [[0, 2**63, 4], [0, 2**62, 4], [2**64 - 1, 0], [0, 2**63 - 1]])
def test_an_empty_tensor_that_no_library_can_hold_regression(tmp_path: Path, shape: list[int], framework: str) -> None:
    """torch's TypeError or RuntimeError, or numpy's ValueError, came out of it."""
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(streamer.UnsupportedDtypeError, match="too large for torch and numpy"):
        streamer.load(tmp_path, framework=framework)
    with streamer.open(tmp_path, framework=framework) as checkpoint, pytest.raises(streamer.UnsupportedDtypeError):
        checkpoint.get_tensor("a")


@pytest.mark.parametrize("name", ["other/a.safetensors", "a.safetensors", "/etc/folder/a.safetensors"])
def test_objects_that_are_not_in_the_folder_regression(name: str) -> None:
    """Google's and Azure's were loaded."""

    def of(entry: str) -> str:
        return entry.replace("folder/a.safetensors", name)

    for error in (
        failure(s3, answering(s3_listing(of(s3_entry("1"))), "application/xml")),
        failure(gcs, answering(gcs_listing(of(gcs_entry("1"))), "application/json")),
        failure(azure, answering(azure_listing(of(azure_entry("1"))), "application/xml")),
    ):
        assert is_the_servers_fault(error)
        assert "not in the folder" in str(error)


def test_a_name_that_no_object_has_is_not_repeated_regression() -> None:
    """The error repeated a megabyte of it."""

    def of(entry: str) -> str:
        return entry.replace("folder/", "folder/" + "a" * 5000)

    for error in (
        failure(s3, answering(s3_listing(of(s3_entry("1"))), "application/xml")),
        failure(gcs, answering(gcs_listing(of(gcs_entry("1"))), "application/json")),
        failure(hub, answering(f"[{hub_entry('1').replace('a.', 'a' * 5000 + '.')}]".encode(), "application/json")),
        failure(azure, answering(azure_listing(of(azure_entry("1"))), "application/xml")),
    ):
        assert is_the_servers_fault(error)
        assert len(str(error)) < 500


@pytest.mark.parametrize("name", ["folder/deeper/a.safetensors", "folder//a.safetensors", "folder/"])
def test_objects_in_folders_below_are_none_of_the_folders(name: str) -> None:
    listing = azure_listing(azure_entry("1").replace("folder/a.safetensors", name))
    with ScriptedServer(SHARD, answering(listing, "application/xml")) as server:
        uri, storage_options = azure(server)
        store = streamer.plugins.open_store(uri, storage_options)
        assert store.find(store.root) == []


def test_a_page_of_azures_that_comes_again_is_refused_regression() -> None:
    """It was asked for until the listing had too many entries."""
    listing = azure_listing(azure_entry("1")).replace(b"<NextMarker/>", b"<NextMarker>again</NextMarker>")
    error = failure(azure, answering(listing, "application/xml"))
    assert is_the_servers_fault(error)
    assert "same page again" in str(error)


def test_a_malformed_url_is_a_usage_error() -> None:
    with pytest.raises(streamer.UsageError, match="not a URL"):
        streamer.load("http://[::1/model.safetensors")


@pytest.mark.parametrize(("redirects", "is_followed"), [(MAX_REDIRECTS, True), (MAX_REDIRECTS + 1, False)])
def test_a_limited_number_of_redirects_is_followed(redirects: int, is_followed: bool) -> None:
    def script(request: Request, answer: Answer) -> None:
        if request.number < redirects:
            answer.become(302, b"", Location=f"/{request.number}.safetensors")

    with ScriptedServer(SHARD, script) as server:
        if is_followed:
            assert streamer.load(web(server)[0]) == {}
        else:
            with pytest.raises(streamer.RedirectError, match=f"more than {MAX_REDIRECTS} times"):
                streamer.load(web(server)[0])
