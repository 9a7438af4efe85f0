"""Listing a folder and describing an object."""

from __future__ import annotations

from streamer.plugins.contract.rules import rule
from streamer.plugins.contract.storage import ContractStorage, as_object, read_whole

__all__ = ["ListingContract"]


class ListingContract(ContractStorage):
    """See the module's docstring."""

    @rule
    def test_listing_gives_the_objects_of_one_folder_sorted_and_with_sizes(self) -> None:
        """Listing returns exactly the objects directly in a folder."""
        self._put("b.safetensors", b"12345")
        self._put("a.safetensors", b"123")
        listed = [(self.name(info), info.size_bytes) for info in self._listed(self._open(self._uri()))]
        assert listed == [("a.safetensors", 3), ("b.safetensors", 5)], f"find gave {listed}"

    @rule
    def test_listing_leaves_out_the_objects_of_sub_folders(self) -> None:
        """Listing a folder returns none of the objects of its sub-folders: they are other checkpoints."""
        self._put("a.safetensors", b"123")
        beside = f"{self._folder}.bin"
        self.put(beside, b"12345")
        self._names.append(beside)
        names = [self.name(info) for info in self._listed(self._open(self.folder_uri))]
        assert beside in names, f"find gave {names}, without {beside}"
        assert "a.safetensors" not in names, f"find gave {names}, of which one is in the sub-folder {self._folder}"

    @rule
    def test_listing_is_never_older_than_the_call(self) -> None:
        """An object put or replaced after a listing is in the next one as it is, also of another store."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri())
        assert [info.size_bytes for info in self._listed(store)] == [3]
        self._put("a.safetensors", b"12345")
        self._put("b.safetensors", b"1")
        for each in (store, self._open(self._uri())):
            if each is store and self.keeps_versions:
                continue
            listed = self._listed(each)
            sizes = [info.size_bytes for info in listed]
            assert sizes == [5, 1], f"find gave sizes {sizes} for what has 5 and 1 bytes now"
            assert each.info(listed[0].path).size_bytes == 5

    @rule
    def test_listing_an_absent_folder_gives_nothing(self) -> None:
        """A missing folder has an empty listing."""
        listed = self._listed(self._open(self._uri()))
        assert listed == [], f"find gave {listed}"

    @rule
    def test_listed_objects_read_like_named_ones(self) -> None:
        """An object can be read with its description from `find`, whatever its name is."""
        for number, name in enumerate(self.odd_names):
            self._put(name, f"object {number}".encode())
        store = self._open(self._uri())
        listed = {self.name(info): info for info in store.find(store.root)}
        assert set(listed) == set(self.odd_names)
        for number, name in enumerate(self.odd_names):
            assert read_whole(as_object(store, listed[name])) == f"object {number}".encode()
            assert read_whole(self._object(self._uri(name))) == f"object {number}".encode()

    @rule
    def test_stat_gives_the_size(self) -> None:
        """`info` returns the size in bytes, and the URL."""
        uri = self._put("a.safetensors", bytes(4321))
        store = self._open(uri)
        info = store.info(store.root)
        assert info.size_bytes == 4321, f"info gave {info.size_bytes} for 4321 bytes"
        assert self.name(info) == "a.safetensors"
        assert info.uri.endswith("a.safetensors")

    @rule
    def test_version_stays_until_the_object_is_replaced(self) -> None:
        """A version is the same when requested again, and another after the object was replaced."""
        uri = self._put("a.safetensors", b"old")
        store = self._open(uri)
        first, again = store.info(store.root).version, self._open(uri).info(store.root).version
        assert first == again, f"the version of the same object was {first}, then {again}"
        self._put("a.safetensors", b"new")
        if self.tells_replacement and first is not None:
            assert self._open(uri).info(store.root).version != first, f"it is still {first}"
