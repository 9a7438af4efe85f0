"""The files of layers, compared with those that a kernel sees when the same layers are unpacked into a folder."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from pathlib import Path

from streamer_stores.oci.files import File, FileTree, Folder, HardLink, Link, Removed

NAMES = ("a", "b", "c")
PATHS = [*NAMES, *("/".join(each) for each in itertools.product(NAMES, repeat=2))]
LOOKED_AT = ["/".join(each) for count in (1, 2, 3) for each in itertools.product(NAMES, repeat=count)]


def drawn_layer(chance, number):
    layer = []
    for _ in range(chance.randint(1, 5)):
        path, kind = chance.choice(PATHS), chance.choice((File, File, Folder, Link, Link, HardLink, Removed))
        if kind is File:
            layer.append(File(path, f"{number}:{len(layer)}"))
        elif kind is Link:
            layer.append(Link(path, "../" * path.count("/") + chance.choice(PATHS)))
        elif kind is HardLink:
            layer.append(HardLink(path, chance.choice(PATHS)))
        else:
            layer.append(kind(path))
    return layer


def unpack(root, layer):
    """Unpack as containerd does: marks first, parents through links, and what is in the way is removed."""
    for member in sorted(layer, key=lambda each: not isinstance(each, Removed)):
        place = place_of(root, member.path)
        if isinstance(member, Removed):
            remove(place)
            continue
        if isinstance(member, HardLink):
            source = place_of(root, member.target)
            if source.is_symlink():
                raise NotDrawnError  # the text of a link means something else in another folder
            if source == place or not source.is_file():
                continue
            os.link(source, root / ".kept")
        for parent in [*place.parents][::-1]:
            if parent.is_symlink():
                raise NotDrawnError  # a circle: `realpath` leaves no other links
            if parent.is_file():
                parent.unlink()
            parent.mkdir(exist_ok=True)
        if isinstance(member, Folder) and place.is_dir() and not place.is_symlink():
            continue
        remove(place)
        if isinstance(member, HardLink):
            (root / ".kept").rename(place)
        elif isinstance(member, File):
            place.write_text(member.entry)
        elif isinstance(member, Link):
            place.symlink_to(member.target)
        elif isinstance(member, Folder):
            place.mkdir()


class NotDrawnError(Exception):
    """A case that says nothing: no tool can unpack it, or the folder of the test is not the root of a file system."""


def place_of(root, path):
    folder, _, name = path.rpartition("/")
    return Path(os.path.realpath(root / folder)) / name


def remove(place):
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif place.exists() or place.is_symlink():
        place.unlink()


def test_layers_look_as_if_they_were_unpacked(tmp_path):
    looked_at = 0
    for seed in range(200):
        chance = random.Random(seed)
        layers = [drawn_layer(chance, number) for number in range(chance.randint(1, 3))]
        root, tree = tmp_path / str(seed), FileTree()
        root.mkdir()
        try:
            for layer in layers:
                unpack(root, layer)
                tree.add_layer(layer)
        except NotDrawnError:
            continue
        looked_at += 1
        for path in LOOKED_AT:
            there = (root / path).read_text() if os.path.isfile(root / path) else None
            assert tree.file(path) == there, (seed, path, layers)
        for folder in ("", *PATHS):
            names = os.listdir(root / folder) if os.path.isdir(root / folder) else []
            files = sorted(name for name in names if os.path.isfile(root / folder / name))
            assert [name for name, _ in tree.files_in(folder)] == files, (seed, folder, layers)
    assert looked_at > 150
