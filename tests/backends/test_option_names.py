"""An option that a storage does not have is refused by name, with the nearest one, before anything is requested."""

from __future__ import annotations

from typing import Any

import pytest
from each_row import each_row
from fsspec import AbstractFileSystem, register_implementation

import streamer
from streamer.backends.option_names import OF_FSSPEC
from streamer.core.errors import OptionError, StreamerError, UsageError
from streamer.plugins import open_store

NOBODY = "http://127.0.0.1:9"
URIS = {
    "file": "/absent/a.safetensors",
    "s3": "s3://bucket/a",
    "gs": "gs://bucket/a",
    "az": "az://container/a",
    "http": f"{NOBODY}/a",
    "hf": "hf://owner/name/a",
    "nfs": "nfs://127.0.0.1:9/export/a",
}
NEEDED: dict[str, dict[str, Any]] = {
    "s3": {"endpoint_url": NOBODY, "anon": True},
    "gs": {"endpoint_url": NOBODY, "token": "anon"},
    "az": {"account_name": "account", "account_host": "127.0.0.1:9", "anon": True},
    "hf": {"endpoint": NOBODY, "token": False},
}


@each_row(
    ("place", "options", "reported"),
    [
        ("file", {"symlink": "inside"}, "file:// has no storage option 'symlink'. Did you mean 'symlinks'?"),
        ("file", {"Symlinks": "inside"}, "'Symlinks'. Did you mean 'symlinks'?"),
        ("file", {"no_such": 1}, "file:// has no storage option 'no_such'. It has symlinks; those of another"),
        ("file", {"flie": {"symlinks": "inside"}}, "under 'flie', which is no scheme. Did you mean 'file'?"),
        ("file", {"File": {"symlinks": "inside"}}, "under 'File', which is no scheme. Did you mean 'file'?"),
        ("file", {"file": {"symlink": "inside"}}, "'symlink'. Did you mean 'symlinks'?"),
        ("file", {"key": "AKID"}, "those of another storage go under the name of its scheme"),
        ("s3", {"ednpoint_url": NOBODY}, "s3:// has no storage option 'ednpoint_url'. Did you mean 'endpoint_url'?"),
        ("s3", {"client_kwargs": {"regionname": "x"}}, "client_kwargs has no storage option 'regionname'. Did you"),
        ("s3", {"config_kwargs": {"read_timeuot": 1}}, "config_kwargs has no storage option 'read_timeuot'. Did you"),
        ("s3", {"flie": {"symlinks": "inside"}}, "Did you mean 'file'? Options under the name of a scheme"),
        ("gs", {"tokne": "anon"}, "gs:// has no storage option 'tokne'. Did you mean 'token'?"),
        ("az", {"acount_key": "x"}, "az:// has no storage option 'acount_key'. Did you mean 'account_key'?"),
        ("az", {"verify": "/ca.pem"}, "az:// has no storage option 'verify'"),
        ("http", {"header": {}}, "http:// has no storage option 'header'. Did you mean 'headers'?"),
        ("http", {"client_kwargs": {"trust_evn": True}}, "client_kwargs has no 'trust_evn'. Did you mean 'trust_env'?"),
        ("hf", {"tokn": "x"}, "hf:// has no storage option 'tokn'. Did you mean 'token'?"),
        ("nfs", {"vers": 4}, "nfs:// has no storage option 'vers'. Did you mean 'version'?"),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest(place: str, options: dict[str, Any], reported: str) -> None:
    with pytest.raises(OptionError) as caught:
        streamer.load(URIS[place], storage_options={**NEEDED.get(place, {}), **options})
    assert reported in str(caught.value)


@each_row("place", URIS)
def test_what_fsspec_takes_for_every_file_system_is_not_refused(place: str) -> None:
    given = dict.fromkeys(OF_FSSPEC) | {"skip_instance_cache": True, "use_listings_cache": False, "max_paths": 5}
    open_store(URIS[place], {**NEEDED.get(place, {}), **given})


def test_options_of_an_instance_of_fsspecs_local_files_are_its_own(tmp_path: Any) -> None:
    fs = streamer_fs = __import__("fsspec").filesystem("file", auto_mkdir=True, no_such=1)
    (tmp_path / "a.bin").write_bytes(b"1")
    assert [info.size_bytes for info in open_store(str(tmp_path), fs=streamer_fs).find(str(tmp_path))] == [1]
    assert fs.auto_mkdir


class StrictFileSystem(AbstractFileSystem):  # type: ignore[misc]
    protocol = "strict"

    def __init__(self, server: str = "") -> None:
        super().__init__()


def test_a_file_system_without_further_arguments_names_the_one_it_refuses() -> None:
    register_implementation("strict", StrictFileSystem, clobber=True)
    with pytest.raises(OptionError, match="The strict file system has no storage option 'sevrer'"):
        open_store("strict://a", {"sevrer": "x"})


def test_the_client_under_a_chain_names_the_option_it_refuses() -> None:
    options = {"s3": {**NEEDED["s3"], "ednpoint": "x"}}
    with pytest.raises(OptionError, match="has no storage option 'ednpoint'"):
        streamer.load("simplecache::s3://bucket/a.safetensors", storage_options=options)


def test_the_command_line_names_the_option() -> None:
    from click.testing import CliRunner

    from streamer._cli import main

    done = CliRunner().invoke(main, ["manifest", URIS["s3"], "--storage-options", '{"kye": "AKID"}'])
    assert done.exit_code == 2
    assert "s3:// has no storage option 'kye'. Did you mean 'key'?" in done.output


@each_row(
    ("uri", "named", "expected", "reported"),
    [
        (None, {}, UsageError, "a URI is non-empty text or a path, not NoneType"),
        (b"s3://bucket/a", {}, UsageError, "a URI is non-empty text or a path, not bytes"),
        (7, {}, UsageError, "a URI is non-empty text or a path, not int"),
        ([None], {}, UsageError, "a URI is non-empty text or a path, not NoneType"),
        ([], {}, UsageError, "no URI given"),
        ("a", {"options": {}}, OptionError, "options is streamer.Options(…) or None, not dict"),
        ("a", {"options": streamer.Options}, OptionError, "options is streamer.Options(…) or None, not type"),
        ("a", {"storage_options": 7}, OptionError, "storage_options is a mapping of names to values, not int"),
        ("a", {"storage_options": "anon"}, OptionError, "storage_options is a mapping of names to values, not str"),
        ("a", {"storage_options": [("anon", True)]}, OptionError, "storage_options is a mapping"),
        ("a", {"storage_options": {7: "x"}}, UsageError, "a name in storage_options is text, not int"),
        ("a", {"storage_options": True}, OptionError, "not bool"),
    ],
)
def test_an_argument_of_a_wrong_type_says_what_was_expected(
    uri: Any, named: dict[str, Any], expected: type[StreamerError], reported: str
) -> None:
    with pytest.raises(expected) as caught:
        streamer.load(uri, **named)
    assert reported in str(caught.value)


def test_an_unknown_option_of_ours_has_a_near_one() -> None:
    with pytest.raises(OptionError, match=r"there is no option 'max_attempt'\. Near: max_attempts"):
        streamer.Options(max_attempt=3)  # type: ignore[call-arg]
