"""Run:ai's C interface on our engine, called as a program in C would."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from runai_calls import Response, Started, Wanted, library, started
from servers.seaweedfs import SeaweedServer

from streamer.compat.runai import library_path

SUCCESS, FINISHED, FILE_ACCESS, END_OF_FILE, INVALID, NO_BACKEND, TIMED_OUT, OTHER_CREDENTIALS = (
    0,
    1,
    2,
    3,
    7,
    12,
    16,
    18,
)
CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def streamer() -> Iterator[Started]:
    with started() as each:
        yield each


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return str(path)


def memory(size: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    buffer = ctypes.create_string_buffer(size)
    return buffer, ctypes.addressof(buffer)


def assert_scattered_ranges_arrive(streamer: Started, url: str) -> None:
    """Unordered, overlapping, twice the same, empty, and up to the end; the bytes beside them stay as they are."""
    buffer, at = memory(700_000)
    spots = [(1_000_000, 48_576, 0), (5, 0, 50_000), (3, 500_000, 50_001), (100, 200, 560_000), (100, 200, 560_300)]
    spots += [(0, 1, 561_000), (len(CONTENT), 0, 0)]
    number = streamer.submit({url: [Wanted(offset, size, at + target) for offset, size, target in spots]})
    responses = streamer.responses(len(spots))
    assert sorted(each.range for each in responses) == list(range(len(spots)))
    assert {(each.code, each.submission, each.file) for each in responses} == {(SUCCESS, number, 0)}
    assert [each.is_last for each in responses] == [False] * (len(spots) - 1) + [True]
    expected = bytearray(len(buffer))
    for offset, size, target in spots:
        expected[target : target + size] = CONTENT[offset : offset + size]
    assert buffer.raw == bytes(expected)


def test_scattered_ranges_of_a_file_arrive(streamer: Started, file: str) -> None:
    assert_scattered_ranges_arrive(streamer, file)


def test_scattered_ranges_arrive_through_a_file_system_of_python(streamer: Started) -> None:
    fsspec.filesystem("memory").pipe_file("/runai/file", CONTENT)
    assert_scattered_ranges_arrive(streamer, "memory://runai/file")


@pytest.mark.server
def test_scattered_ranges_of_s3_arrive_with_credentials_of_the_caller(
    streamer: Started, s3_server: SeaweedServer
) -> None:
    s3_server.put("private", "runai/file", CONTENT)
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    assert streamer.set_credentials(**keys, endpoint=s3_server.endpoint_url, region="us-east-1") == SUCCESS
    assert_scattered_ranges_arrive(streamer, "s3://private/runai/file")


@pytest.mark.server
def test_s3_is_read_with_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, s3_server: SeaweedServer, streamer: Started
) -> None:
    s3_server.put("public", "runai/file", CONTENT)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    monkeypatch.setenv("RUNAI_STREAMER_S3_UNSIGNED", "1")
    assert_scattered_ranges_arrive(streamer, "s3://public/runai/file")


def test_several_submissions_are_distinguished(streamer: Started, file: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(CONTENT[::-1])
    buffers = [memory(1000) for _ in range(12)]
    numbers = []
    for index, (_, at) in enumerate(buffers):
        ranges = [Wanted(index, 500, at), Wanted(0, 500, at + 500)]
        numbers.append(streamer.submit({f"{file}-not-read": [], str(other if index % 2 else file): ranges}))
    assert len(set(numbers)) == len(numbers)
    responses = streamer.responses(2 * len(numbers))
    for index, number in enumerate(numbers):
        own = [each for each in responses if each.submission == number]
        assert [each.is_last for each in own] == [False, True]
        assert sorted((each.file, each.range) for each in own) == [(1, 0), (1, 1)]
        content = CONTENT[::-1] if index % 2 else CONTENT
        assert buffers[index][0].raw == content[index : index + 500] + content[:500]


def test_a_failure_is_that_of_its_range_alone(
    streamer: Started, file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    buffer, at = memory(100)
    missing = str(tmp_path / "missing")
    streamer.submit(
        {
            missing: [Wanted(0, 8, at + 50), Wanted(0, 0, 0)],
            file: [Wanted(10, 10, at), Wanted(len(CONTENT) - 4, 8, at + 60), Wanted(2**64 - 1, 8, at + 60)],
            str(tmp_path): [Wanted(0, 8, at + 70)],
            "nosuch://there/is": [Wanted(0, 8, at + 80)],
        }
    )
    codes = {(each.file, each.range): each.code for each in streamer.responses(7)}
    assert codes == {
        (0, 0): FILE_ACCESS,
        (0, 1): FILE_ACCESS,
        (1, 0): SUCCESS,
        (1, 1): END_OF_FILE,
        (1, 2): END_OF_FILE,
        (2, 0): FILE_ACCESS,
        (3, 0): NO_BACKEND,
    }
    assert buffer.raw == CONTENT[10:20] + bytes(90)
    assert f"{missing}" in caplog.text
    assert "nosuch" in caplog.text
    assert b"End of file" in streamer.library.runai_file_streamer_response_str(END_OF_FILE)


def test_a_file_that_is_replaced_between_two_requests_is_refused(
    streamer: Started, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The header of one version and the weights of another would be a model that never was."""
    buffer, at = memory(20)
    streamer.submit({file: [Wanted(0, 10, at)]})
    assert streamer.responses(1)[0].code == SUCCESS
    os.replace(_written(Path(file).with_name("new"), CONTENT[::-1]), file)
    streamer.submit({file: [Wanted(0, 10, at + 10)]})
    assert streamer.responses(1)[0].code == FILE_ACCESS
    assert "changed" in caplog.text or "replaced" in caplog.text
    with started() as other:
        other.submit({file: [Wanted(0, 10, at + 10)]})
        assert other.responses(1)[0].code == SUCCESS
    assert buffer.raw == CONTENT[:10] + CONTENT[::-1][:10]


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.server
def test_a_refused_key_is_in_no_message(
    s3_server: SeaweedServer, streamer: Started, caplog: pytest.LogCaptureFixture
) -> None:
    canary = "canary-secret-4711-canary"
    s3_server.put("private", "runai/file", CONTENT)
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": canary}
    streamer.set_credentials(**keys, endpoint=s3_server.endpoint_url, region="us-east-1")
    buffer, at = memory(10)
    with caplog.at_level(logging.DEBUG):
        streamer.submit({"s3://private/runai/file": [Wanted(0, 10, at)]})
        assert streamer.responses(1)[0].code == FILE_ACCESS
    assert buffer.raw == bytes(10)
    assert "s3://private/runai/file" in caplog.text
    assert canary not in caplog.text


def test_credentials_are_set_once(streamer: Started) -> None:
    assert streamer.set_credentials() == SUCCESS
    assert streamer.set_credentials(access_key_id="one", secret_access_key="two") == SUCCESS
    assert streamer.set_credentials(access_key_id="one", secret_access_key="two") == SUCCESS
    assert streamer.set_credentials(access_key_id="another") == OTHER_CREDENTIALS
    assert streamer.set_credentials() == SUCCESS


def test_a_folder_is_listed(streamer: Started, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.bin", "b.json", "in/c.bin"):
        (tmp_path / name).write_text(name)
    paths = {name: (f"{tmp_path}/{name}", len(name)) for name in ("a.bin", "b.json", "in/c.bin")}
    assert streamer.listed(str(tmp_path)) == (SUCCESS, list(paths.values()))
    assert streamer.listed(f"{tmp_path}/", is_recursive=False) == (SUCCESS, [paths["a.bin"], paths["b.json"]])
    assert streamer.listed(str(tmp_path), allowed=["*.bin"]) == (SUCCESS, [paths["a.bin"], paths["in/c.bin"]])
    assert streamer.listed(str(tmp_path), ignored=["*/in/*", "*.json"]) == (SUCCESS, [paths["a.bin"]])
    assert streamer.listed(str(tmp_path / "missing")) == (FILE_ACCESS, [])
    assert streamer.listed(str(tmp_path / "a.bin")) == (FILE_ACCESS, [])
    assert streamer.listed("") == (INVALID, [])


@pytest.mark.server
def test_a_prefix_of_s3_is_listed(streamer: Started, s3_server: SeaweedServer) -> None:
    for name in ("a.bin", "in/b.bin"):
        s3_server.put("private", f"runai-listed/{name}", b"12345")
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    streamer.set_credentials(**keys, endpoint=s3_server.endpoint_url)
    paths = [(f"s3://private/runai-listed/{name}", 5) for name in ("a.bin", "in/b.bin")]
    assert streamer.listed("s3://private/runai-listed/") == (SUCCESS, paths)
    assert streamer.listed("s3://private/runai-listed", is_recursive=False) == (SUCCESS, paths[:1])
    assert streamer.listed("s3://private/runai-missing") == (FILE_ACCESS, [])


def test_an_ended_streamer_and_one_that_never_was_are_refused(file: str) -> None:
    streamer = Started()
    streamer.end()
    streamer.end()
    buffer, at = memory(4)
    assert streamer.request({file: [Wanted(0, 4, at)]})[0] == FINISHED
    assert streamer.response(0).code == FINISHED
    assert streamer.set_credentials(region="a") == streamer.listed("/")[0] == FINISHED
    streamer.handle = ctypes.c_void_p(1 << 60)
    assert streamer.request({file: [Wanted(0, 4, at)]})[0] == INVALID
    assert streamer.response(0).code == INVALID
    streamer.end()
    assert buffer.raw == bytes(4)


def test_no_request_without_a_path_or_an_address_is_taken(streamer: Started, file: str) -> None:
    assert streamer.request({file: [Wanted(0, 4, 0)]})[0] == INVALID
    assert streamer.request({"": [Wanted(0, 4, 1)]})[0] == INVALID
    assert streamer.submit({}) < streamer.submit({file: []})
    assert streamer.response(1) == Response(TIMED_OUT, 0, 0, 0, False)


def test_the_library_may_be_loaded_before_the_package(file: str) -> None:
    code = f"""
        import ctypes, sys
        library = ctypes.CDLL({library_path()!r})
        handle = ctypes.c_void_p()
        assert "streamer" not in sys.modules
        assert library.runai_file_streamer_start(ctypes.byref(handle)) == 0
        assert "streamer" in sys.modules and "torch" not in sys.modules
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from runai_calls import Started, Wanted
        buffer = ctypes.create_string_buffer(8)
        streamer = Started()
        streamer.submit({{{file!r}: [Wanted(1, 8, ctypes.addressof(buffer))]}})
        assert streamer.response().code == 0 and buffer.raw == bytes(range(1, 9))
    """  # and neither of the two is ended before the process
    lines = "\n".join(line[8:] for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_but_the_eight_functions_is_exported() -> None:
    reported = subprocess.run(
        ["nm", "--dynamic", "--defined-only", library_path()], capture_output=True, text=True, check=True
    ).stdout
    ours = {"start", "end", "set_credentials", "request", "response", "response_str", "list_files"}
    expected = {f"runai_file_streamer_{name}" for name in ours | {"probe_direct_block_size"}}
    assert {line.split()[-1] for line in reported.splitlines()} == expected


def test_the_error_says_which_layout_direct_reads_need(streamer: Started, file: str) -> None:
    block = ctypes.c_size_t()
    probe = library().runai_file_streamer_probe_direct_block_size
    paths = (ctypes.c_char_p * 1)(file.encode())
    assert probe(streamer.handle, paths, ctypes.c_uint(1), ctypes.byref(block)) == SUCCESS
    assert block.value == 4096
