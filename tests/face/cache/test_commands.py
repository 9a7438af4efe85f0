"""``python -m streamer cache``: what it prints, what it leaves, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save
from servers.listed_folder import LISTINGS, is_listing, shard
from servers.one_file import FILES, is_block, one_file, place_of

import streamer
from streamer import _native
from streamer._cli import main

TENSORS = {"weight": np.arange(2_000_000, dtype=np.float32), "bias": np.arange(7, dtype=np.int64)}


@pytest.fixture
def server():
    with one_file(data=save(TENSORS)) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*words: str):
    result = CliRunner().invoke(main, ["cache", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def run_json(*words: str):
    result = run(*words, "--json")
    return json.loads(result.stdout), result.exit_code


def warm(server, *words: str):
    uri, storage_options = place_of("s3", server)
    return run("warm", uri, "--storage-options", json.dumps(storage_options), *words)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_warm_reads_what_is_missing_and_a_load_then_reads_nothing(server, folder):
    result = warm(server, "--json")
    reported = json.loads(result.stdout)
    assert (result.exit_code, reported["bytes"]) == (0, 8_000_056)
    assert reported["read_bytes"] in (
        8_000_000,
        8_000_056,
    )  # the small one lies beside the header, which is written soon
    before = sum(map(is_block, server.requests))
    assert json.loads(warm(server, "--json").stdout)["read_bytes"] == 0
    uri, storage_options = place_of("s3", server)
    tensors = streamer.load(uri, framework="np", storage_options=storage_options)
    np.testing.assert_array_equal(tensors["weight"], TENSORS["weight"])
    assert sum(map(is_block, server.requests)) == before
    assert "in the cache" in warm(server).stdout
    assert warm(server, "--quiet").stdout == ""


def test_ls_lists_the_cache(server, folder):
    warm(server)
    (reported,), code = run_json("ls")
    assert code == 0
    assert reported["uri"] == "s3://bucket/a.safetensors"
    assert reported["version"] == '"v1"'
    assert reported["held_bytes"] == reported["bytes"] == len(save(TENSORS))
    assert reported["disk_bytes"] >= reported["bytes"]
    table = run("ls").stdout.splitlines()
    assert table[0].split() == ["SIZE", "THERE", "LAST", "USED", "URI", "VERSION"]
    assert "100 %" in table[1]


def test_verify_finds_what_is_damaged_and_the_next_load_is_right(server, folder):
    warm(server)
    assert run("verify").exit_code == 0
    (data,) = folder.glob("v1/*/data")
    flip(data, 4_000_000)
    reported, code = run_json("verify")
    assert code == 65
    assert reported["damaged"][0]["uri"] == "s3://bucket/a.safetensors"
    assert run("verify").exit_code == 0
    (reported,), _ = run_json("ls")
    assert reported["held_bytes"] < reported["bytes"]
    assert json.loads(warm(server, "--json").stdout)["read_bytes"] == 8_000_000


@pytest.mark.parametrize("words", [("s3://bucket/a.safetensors",), ("s3://bucket",), ("s3://bucket/",), ("--all",)])
def test_rm_removes_what_is_named(server, folder, words):
    warm(server)
    assert run("rm", "s3://buck").exit_code == 66
    reported, code = run_json("rm", *words)
    assert (reported["removed"], code) == (["s3://bucket/a.safetensors"], 0)
    assert run_json("ls") == ([], 0)
    assert not list(folder.glob("v1/*"))


def test_rm_leaves_what_is_in_use(server, folder):
    uri, storage_options = place_of("s3", server)
    with streamer.open(uri, framework="np", storage_options=storage_options) as checkpoint:
        checkpoint.get_tensor("weight")
        assert _native.finish_cache_writes(10)
        reported, code = run_json("rm", "--all")
        assert (reported["removed"], reported["in_use"], code) == ([], 1, 75)
    del checkpoint
    assert run("rm", "--all").exit_code == 0


def test_rm_wants_a_uri_or_all(folder):
    assert run("rm").exit_code == 2
    assert run("rm", "s3://b", "--all").exit_code == 2


def test_path_prints_the_folder_that_is_meant(folder, tmp_path, monkeypatch):
    assert run("path").stdout.strip() == str(folder)
    assert run("path", "--cache-dir", str(tmp_path / "other")).stdout.strip() == str(tmp_path / "other")
    monkeypatch.delenv("STREAMER_CACHE_DIR")
    result = run("path")
    assert result.exit_code == 2
    assert "STREAMER_CACHE_DIR" in result.stderr


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_an_absent_cache_is_an_error_and_is_not_created(folder, command):
    assert run(command).exit_code == 66
    assert not folder.exists()


def test_warm_of_what_is_never_cached_is_an_error(folder, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(save(TENSORS))
    result = run("warm", str(tmp_path / "a.safetensors"))
    assert result.exit_code == 2
    assert "files of this machine" in result.stderr


def test_warm_of_another_format_says_what_is_taken_regression(folder, s3_server, tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    s3_server.put("private", f"{tmp_path.name}/x.npz", (tmp_path / "x.npz").read_bytes())
    options = json.dumps(s3_server.storage_options())
    for uri in (f"s3://private/{tmp_path.name}", f"s3://private/{tmp_path.name}/x.npz"):
        result = run("warm", uri, "--storage-options", options)
        assert result.exit_code == 2
        assert "safetensors only, and this checkpoint is of the format NumPy. Load it once" in result.stderr


def test_warm_reports_a_full_cache(server, folder, monkeypatch):
    monkeypatch.setenv("STREAMER_CACHE_BYTES", "1MiB")
    result = warm(server)
    assert result.exit_code != 0
    assert "cache_bytes" in result.stderr


def test_no_secret_of_a_url_is_printed(folder):
    folder.mkdir(mode=0o700)
    result = run("rm", "https://host/a.safetensors?sig=CANARY")
    assert "CANARY" not in result.output


@pytest.mark.parametrize("storage", LISTINGS)
def test_a_question_mark_in_a_name_is_no_query_regression(storage, folder):
    """``cache rm …/0?x.safetensors`` removed …/0, and the list showed both alike."""

    def script(request, answer):
        if is_listing(request):
            query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
            LISTINGS[storage](query, answer, server.url.removesuffix("/object"))
            answer.body = answer.body.replace(b"m/1.safetensors", b"m/0?x.safetensors")
            answer.headers["Content-Length"] = str(len(answer.body))
        elif request.begin < request.end and answer.status == 206:
            name = unquote(urlsplit(request.path).path).rpartition("/")[2]
            answer.body = shard(1 if "?" in name else int(name[0]))[request.begin : request.end]

    with one_file(script) as server:
        uri, storage_options = FILES[storage](server.url.removesuffix("/object"))
        place = uri.removesuffix("a.safetensors") + "m"
        assert len(streamer.load(place, framework="np", storage_options=storage_options)) == 6
    names = ["0.safetensors", "0?x.safetensors", "2.safetensors"]
    assert sorted(each["uri"] for each in run_json("ls")[0]) == [f"{place}/{name}" for name in names]
    assert run("rm", f"{place}/0").exit_code == 66
    assert run_json("rm", f"{place}/0.safetensors?y")[1] == 66
    assert run_json("rm", f"{place}/0?x.safetensors")[0]["removed"] == [f"{place}/0?x.safetensors"]
    assert run_json("rm", f"{place}/0.safetensors")[0]["removed"] == [f"{place}/0.safetensors"]
    assert len(run_json("rm", place)[0]["removed"]) == 1


def test_a_file_in_place_of_the_folder_is_named_regression(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = run("ls", "--cache-dir", str(tmp_path / "file"))
    assert shown.exit_code != 0
    assert f"{tmp_path / 'file'}: not a folder" in shown.output
