"""The engine was compiled and linked so that a mistake in it is harder to use; see native/CMakeLists.txt."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import safetensors.torch
import torch
from elftools.elf.constants import P_FLAGS
from elftools.elf.elffile import ELFFile
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from pulls import pull, visible
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import _native
from streamer._pull.listing import check_names, is_safe
from streamer.compat.runai import library_path
from streamer.core.errors import FormatError
from streamer.integrations.diffusers.pipeline_folder import PipelineFolder
from streamer.integrations.library_calls import Location
from streamer.integrations.model_folder import ModelFolder
from streamer.integrations.naming import DIFFUSERS

ENDBR64 = bytes.fromhex("f30f1efa")  # where an indirect call may lead, for processors with CET
# Of arm64: where one may lead (BTI c), or the return address is signed first (PACIASP, which counts as that).
LANDING_PADS = (bytes.fromhex("5f2403d5"), bytes.fromhex("3f2303d5"))
DF_BIND_NOW = 0x8


STARTS = ("PyInit__native", "runai_file_streamer_start")


@pytest.fixture(params=[_native.__file__, library_path()], ids=["engine", "runai"])
def elf(request: pytest.FixtureRequest) -> Iterator[ELFFile]:
    with Path(request.param).open("rb") as file:
        yield ELFFile(file)


def imports(elf: ELFFile) -> set[str]:
    return {
        symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF"
    }


def segments(elf: ELFFile, kind: str) -> list[object]:
    return [segment for segment in elf.iter_segments() if segment["p_type"] == kind]


def test_what_the_linker_filled_in_is_read_only_from_the_start(elf: ELFFile) -> None:
    (relro,) = segments(elf, "PT_GNU_RELRO")
    got = elf.get_section_by_name(".got")
    assert relro["p_vaddr"] <= got["sh_addr"]
    assert got["sh_addr"] + got["sh_size"] <= relro["p_vaddr"] + relro["p_memsz"]
    assert elf.get_section_by_name(".got.plt") is None  # addresses that would be looked up later, and so stay writable
    (dynamic,) = segments(elf, "PT_DYNAMIC")
    assert [tag["d_val"] & DF_BIND_NOW for tag in dynamic.iter_tags("DT_FLAGS")] == [DF_BIND_NOW]
    assert not list(dynamic.iter_tags("DT_TEXTREL"))


def test_no_memory_is_writable_and_holds_code(elf: ELFFile) -> None:
    (stack,) = segments(elf, "PT_GNU_STACK")
    assert not stack["p_flags"] & P_FLAGS.PF_X
    for segment in segments(elf, "PT_LOAD"):
        assert not (segment["p_flags"] & P_FLAGS.PF_W and segment["p_flags"] & P_FLAGS.PF_X)


def test_a_stack_that_was_overwritten_ends_the_process(elf: ELFFile) -> None:
    assert "__stack_chk_fail" in imports(elf)


def test_calls_that_fill_a_buffer_are_checked_against_its_size() -> None:
    with Path(_native.__file__).open("rb") as file:  # the other library has no such calls
        assert {name for name in imports(ELFFile(file)) if name.endswith("_chk")}


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="a processor without marked entries")
def test_a_function_begins_with_the_mark_of_one(elf: ELFFile) -> None:
    symbols = elf.get_section_by_name(".dynsym")
    (start,) = [symbol for name in STARTS for symbol in symbols.get_symbol_by_name(name) or []]
    text = elf.get_section_by_name(".text")
    offset = start["st_value"] - text["sh_addr"]
    assert text.data()[offset : offset + 4] in (ENDBR64, *LANDING_PADS)


# --- A storage may list any name: none leads a pull out of its folder, and none is written --------------------------

OUTSIDE = [
    "..%2f..%2fevil.json",
    "%2fetc%2fevil.json",
    "a%00.json",
    "%2e%2e%2fevil.json",
    ".streamer-pull%2fcomplete.json",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_page_that_links_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    def script(request: Request, answer: Answer) -> None:
        if request.path.endswith("/object/"):
            answer.become(200, f'<a href="{name}">x</a><a href="good.json">y</a>'.encode(), Content_Type="text/html")

    with ScriptedServer(b"{}", script) as server:
        reported = pull(f"{server.url}/", tmp_path / "a" / "copy")
        assert (reported["exit_code"], reported["error"]) == (65, "FormatError"), reported
        assert visible(tmp_path / "a") == {f"copy/{each}" for each in (".streamer-pull/lock",)}
        assert pull(f"{server.url}/", tmp_path / "a" / "copy", "--include", "good.json")["exit_code"] == 0
    assert sorted(os.listdir(tmp_path / "a" / "copy")) == [".streamer-pull", "good.json"]


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    for name in ("model/vae", "outside", "copy"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "model" / "vae" / "a.json").write_text("{}")
    (tmp_path / "copy" / "vae").symlink_to(tmp_path / "outside")
    reported = pull(tmp_path / "model", tmp_path / "copy")
    assert (reported["exit_code"], "a link" in reported["message"]) == (73, True), reported
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    for name in ("model", "copy"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "a.json").write_text("{}")
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "copy" / "a.json").symlink_to(tmp_path / "precious")
    assert pull(tmp_path / "model", tmp_path / "copy")["exit_code"] == 0
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "copy" / "a.json").is_symlink()


def test_a_name_that_is_a_file_and_a_folder_is_refused() -> None:
    with pytest.raises(FormatError, match="'a/b' as a file, and as the folder of 'a/b/c'"):
        check_names(["a/b", "a/b/c", "d"], "s3://bucket/model")


def test_a_record_that_names_files_outside_is_none(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.json").write_text("{}")
    copy = tmp_path / "copy"
    pull(tmp_path / "model", copy)
    (tmp_path / "precious").write_text("mine")
    record = copy / ".streamer-pull" / "complete.json"
    record.write_text(record.read_text().replace('"a.json"', '"../precious"'))
    assert pull(tmp_path / "model", copy)["exit_code"] == 0
    assert (tmp_path / "precious").read_text() == "mine"


@given(st.text(alphabet="./a\0\\\udfff", max_size=12))
def test_a_safe_name_stays_in_its_folder(name: str) -> None:
    if is_safe(name):
        path = os.path.normpath(os.path.join("/root/folder", name))
        assert path == f"/root/folder/{name}"
        os.fsencode(path)


# --- whatever a listing or an index names, nothing is written outside of the private folder that a library loa ---

NAMES = [
    "../outside.json",
    "../../outside.json",
    "sub/../../outside.json",
    "sub/inside.json",
    "/outside.json",
    "..",
    ".",
    "",
    "a\0b.json",
    "..json",
    "C:\\outside.json",
    "..\\outside.json",
]


class Listing(MemoryFileSystem):
    """A file system that lists, in each folder, files of all of these names."""

    cachable = False
    store: dict[str, object] = {}  # noqa: RUF012  fsspec's, of each class

    def ls(self, path, detail=True, **others):
        found = super().ls(path, detail=True, **others)
        folder = path.rstrip("/")
        return found + [{"name": f"{folder}/{name}", "size": 2, "type": "file"} for name in NAMES]

    def info(self, path, **others):
        return super().info(path, **others) if self.exists(path) else {"name": path, "size": 2, "type": "file"}

    def cat_file(self, path, start=None, end=None, **others):
        return super().cat_file(path, start, end, **others) if self.exists(path) else b"{}"[start:end]

    def exists(self, path, **others):
        return path.strip("/") in {name.strip("/") for name in self.store}


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A folder with a neighbour: what is made in it must stay in it."""
    (tmp_path / "private").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "private"))
    return tmp_path / "private"


def hostile_folder(*folders, **files):
    fs = Listing()
    weights = safetensors.torch.save({"a": torch.ones(2)})
    for folder in folders or ("model",):
        fs.pipe_file(f"/{folder}/config.json", b"{}")
        fs.pipe_file(f"/{folder}/diffusion_pytorch_model.safetensors", weights)
    for name, content in files.items():
        fs.pipe_file(f"/model/{name}.json", json.dumps(content).encode())
    return Location(uri="memory://model", fs=fs)


def written(private):
    (folder,) = private.iterdir()
    assert sorted(private.parent.iterdir()) == [private]
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_names_of_a_listing(private):
    with closing(ModelFolder(hostile_folder(), naming=DIFFUSERS)) as folder:
        assert Path(folder.path).parent == private
        assert {"config.json", "diffusion_pytorch_model.safetensors"} <= written(private)
        assert all("/" not in name for name in written(private))


def test_names_of_a_listing_of_a_pipeline(private):
    location = hostile_folder("model/unet", "model", model_index={"unet": ["diffusers", "UNet2DModel"]})
    with closing(PipelineFolder(location)):
        assert {"model_index.json", "unet/config.json", "unet/diffusion_pytorch_model.safetensors"} <= written(private)
        assert all(name.count("/") <= name.startswith("unet/") for name in written(private))


@pytest.mark.parametrize("shard", ["../x.safetensors", "/x.safetensors", "a/../../x.safetensors", "..\\x.safetensors"])
@pytest.mark.parametrize("index", ["", ".fp16"])
def test_names_of_an_index(private, shard, index):
    variant = index.removeprefix(".") or None
    files = {f"diffusion_pytorch_model.safetensors.index{index}": {"weight_map": {"a": shard}}}
    location = hostile_folder(**files)
    if variant:
        content = safetensors.torch.save({"a": torch.ones(2)})
        location.fs.pipe_file("/model/diffusion_pytorch_model.fp16-00001-of-00001.safetensors", content)
    with pytest.raises(streamer.ShardIndexError):
        ModelFolder(location, naming=DIFFUSERS, variant=variant)
    assert not list(private.iterdir())
    assert sorted(private.parent.iterdir()) == [private]
