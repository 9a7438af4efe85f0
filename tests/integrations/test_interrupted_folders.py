"""A load that Ctrl-C ends while other threads fill its private folder leaves no folder behind."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel

import streamer
from streamer.core.folders.private_folders import make_folders_above, private_folder
from streamer.integrations import folder_weights, small_files


@pytest.fixture
def private(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("private")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def pipeline(tmp_path):
    """A folder that is a model, and a pipeline of two components."""
    (tmp_path / "model_index.json").write_text(json.dumps({"unet": ["diffusers", "U"], "vae": ["diffusers", "V"]}))
    for folder in (tmp_path, tmp_path / "unet", tmp_path / "vae"):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        name = "model" if folder == tmp_path else "diffusion_pytorch_model"
        save_file({"a": torch.ones(3)}, folder / f"{name}.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("library", "module"),
    [("transformers", small_files), ("diffusers", small_files), ("diffusers", folder_weights)],
)
def test_ctrl_c_while_threads_write_leaves_no_folder_regression(library, module, pipeline, private, monkeypatch):
    is_removed, writers, room_in = threading.Event(), [], module.room_in

    @contextmanager
    def interrupted(folder):
        if threading.current_thread() is not threading.main_thread():
            writers.append(threading.current_thread())
            if writers[0] is writers[-1]:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            is_removed.wait(30)
        with room_in(folder):
            yield

    monkeypatch.setattr(module, "room_in", interrupted)
    cls = AutoModel
    if library == "diffusers":
        cls = pytest.importorskip("diffusers").DiffusionPipeline
    with pytest.raises(KeyboardInterrupt):
        getattr(streamer, library).from_pretrained(cls, str(pipeline), options=streamer.Options())
    is_removed.set()
    for each in writers:
        each.join()
    assert writers
    assert not list(private.glob("streamer-*"))


def test_a_folder_is_removed_while_a_thread_fills_it_regression(private):
    for _ in range(20):
        folder, is_full, stop = private_folder(), threading.Event(), threading.Event()

        def fill(path, is_full=is_full, stop=stop):
            number = 0
            while not stop.is_set():
                number += 1
                file = private / path / f"{number % 5}" / str(number)
                try:
                    make_folders_above(file, path)
                    file.write_bytes(b"1")
                except OSError:
                    is_full.set()
                    return
                if number == 50:
                    is_full.set()

        thread = threading.Thread(target=fill, args=(folder.name,))
        thread.start()
        is_full.wait()
        folder.cleanup()
        thread.join()  # it finds no folder
        assert not list(private.iterdir())
