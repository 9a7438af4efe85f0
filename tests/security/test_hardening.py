"""The engine was compiled and linked so that a mistake in it is harder to use; see native/CMakeLists.txt."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.constants import P_FLAGS
from elftools.elf.elffile import ELFFile

from streamer import _native
from streamer.compat.runai import library_path

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
