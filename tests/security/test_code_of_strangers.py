"""A downloaded folder runs no code: not when it is loaded, not when it is the working directory.

Each program is a Python of its own, started in a folder that holds a checkpoint and what an attacker puts beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

EVIL = "print('EVIL RAN', flush=True)\n"
BACKEND = EVIL + "from streamer import hookimpl\n@hookimpl\ndef streamer_open_store(scheme): return None\n"
# As arrays, which need no torch: what torch itself looks for in the working directory has a test of its own.
LOAD = "import streamer; print(sorted(streamer.load({uri!r}, framework='np')))"
ACME = "import streamer; streamer.load('acme://x', framework='np')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "downloaded"
    made.mkdir()
    save_file({"weight": torch.arange(10.0)}, made / "model.safetensors")
    (made / "evil.py").write_text(BACKEND)
    return made


def announce(folder: Path, points: str, name: str | None = "x", suffix: str = "-1.dist-info") -> None:
    info = folder / f"{name or 'x'}{suffix}"
    info.mkdir()
    (info / "entry_points.txt").write_text(points)
    if name:
        file = "METADATA" if suffix.endswith("dist-info") else "PKG-INFO"
        (info / file).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return subprocess.run(
        [sys.executable, *arguments],
        check=False,  # some are to end with an error
        cwd=folder,
        env={**kept, "PYTHONWARNINGS": "ignore:You are using a non-supported Python:FutureWarning", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("scheme", ["file", "acme"])
@pytest.mark.parametrize("name", ["x", "streamer", None])
@pytest.mark.parametrize("suffix", ["-1.dist-info", ".egg-info"])
def test_a_folder_that_is_loaded_where_python_was_started_announces_no_plugin(
    folder: Path, scheme: str, name: str | None, suffix: str
) -> None:
    announce(folder, f"[streamer.backends]\n{scheme} = evil\n", name, suffix)
    done = run(folder, "-c", LOAD.format(uri="."))
    assert done.stdout == "['weight']\n", done.stderr
    opened = run(folder, "-c", ACME)
    assert "EVIL" not in opened.stdout
    assert "UnknownSchemeError" in opened.stderr


def test_the_working_directory_of_a_module_runs_no_code(folder: Path, tmp_path: Path) -> None:
    """``python -m`` names the directory in full; the program that it runs may lie elsewhere."""
    announce(folder, "[streamer.backends]\nfile = evil\n")
    elsewhere = tmp_path / "installed"
    elsewhere.mkdir()
    (elsewhere / "program.py").write_text(LOAD.format(uri="model.safetensors"))
    done = run(folder, "-m", "program", PYTHONPATH=str(elsewhere))
    assert done.stdout == "['weight']\n", done.stderr


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/model.safetensors", "file://{}"])
def test_a_checkpoint_on_the_path_runs_no_code(folder: Path, tmp_path: Path, form: str) -> None:
    announce(folder, "[streamer.backends]\nfile = evil\n")
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); " + LOAD.format(uri=form.format(folder))
    done = run(tmp_path, "-c", code)
    assert done.stdout == "['weight']\n", done.stderr


def test_ignored_values_are_logged_with_the_way_to_allow_them(folder: Path) -> None:
    announce(folder, "[streamer.backends]\nacme = evil\n", "x\x1b[31m")
    done = run(folder, "-c", "import logging; logging.basicConfig(); " + ACME)
    assert "working directory" in done.stderr
    assert "name it in STREAMER_PLUGINS" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("group", ["fsspec.specs", "torch.backends"])
def test_no_other_library_runs_the_folders_code_on_our_behalf(folder: Path, group: str) -> None:
    announce(folder, f"[{group}]\nmemory = evil:Files\n")
    code = "import streamer\n"
    code += "try: streamer.load('memory://x.safetensors')\nexcept streamer.PluginError as error: print(error)\n"
    code = code if group == "fsspec.specs" else code.replace("memory://x", "model")
    done = run(folder, "-c", code)
    assert "EVIL" not in done.stdout + done.stderr
    assert "which nobody installed: it lies in the working directory" in done.stdout, done.stderr


@pytest.mark.parametrize("group", ["fsspec.specs", "torch.backends"])
@pytest.mark.parametrize(
    "call", ["load({0!r})", "load([{0!r}, 'evil://x'])", "stream({0!r})", "open({0!r} + '/model.safetensors')"]
)
def test_a_folder_on_the_path_that_is_loaded_from_elsewhere_runs_no_code_regression(
    folder: Path, tmp_path: Path, group: str, call: str
) -> None:
    """Only the working directory was looked at before torch was imported, and fsspec asked."""
    announce(folder, f"[{group}]\nevil = evil:Files\n")
    loading = call.format(str(folder))
    code = f"import sys; sys.path.append({str(folder)!r}); import streamer\n"
    code += f"try: streamer.{loading}\nexcept streamer.StreamerError as error: print(error)\n"
    done = run(tmp_path, "-c", code)
    assert "EVIL" not in done.stdout + done.stderr, done.stderr
    if group == "torch.backends" or "evil://" in call:
        assert "which nobody installed" in done.stdout, done.stderr


# --- who means it keeps it ----------------------------------------------------------------------------------------


def test_a_plugin_that_the_user_names_is_used_from_the_working_directory(folder: Path) -> None:
    announce(folder, "[streamer.backends]\nfile = evil\n", "My_Plugin")
    done = run(folder, "-c", LOAD.format(uri="."), STREAMER_PLUGINS="other, my-plugin")
    assert done.stdout.startswith("EVIL RAN\n"), done.stderr


@pytest.mark.parametrize("place", ["here", "."])
def test_a_path_that_the_user_set_is_looked_at_even_where_it_is_the_working_directory(folder: Path, place: str) -> None:
    """In full, that is: ``.`` and an empty entry are wherever Python happens to start."""
    announce(folder, "[streamer.backends]\nacme = evil\n")
    done = run(folder, "-c", ACME, PYTHONPATH=str(folder) if place == "here" else place)
    assert ("EVIL RAN" in done.stdout) == (place == "here")


def test_a_path_that_an_editable_install_left_is_looked_at(folder: Path, tmp_path: Path) -> None:
    announce(folder, "[streamer.backends]\nacme = evil\n", suffix=".egg-info")
    user_base = tmp_path / "user"
    code = f"import sys; sys.path.append({str(folder)!r}); {ACME}"
    asked = run(folder, "-c", "import site; print(site.getusersitepackages())", PYTHONUSERBASE=str(user_base))
    packages = Path(asked.stdout.strip())
    packages.mkdir(parents=True)
    assert "EVIL RAN" not in run(folder, "-c", code, PYTHONUSERBASE=str(user_base)).stdout
    (packages / "easy-install.pth").write_text(f"# made by setuptools\n{folder}\n")
    assert "EVIL RAN" in run(folder, "-c", code, PYTHONUSERBASE=str(user_base)).stdout


def test_standing_in_site_packages_loses_no_plugin(folder: Path) -> None:
    import click

    packages = Path(click.__file__).resolve().parents[1]
    done = run(packages, "-c", LOAD.format(uri=str(folder)))
    assert done.stdout == "['weight']\n", done.stderr


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["click", "json/__init__", "pluggy", "fsspec/__init__", "tqdm", "logging/__init__"])
def test_the_command_line_imports_nothing_from_the_working_directory(folder: Path, module: str) -> None:
    (folder / f"{module}.py").parent.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(EVIL)
    announce(folder, "[streamer.backends]\nfile = evil\n")
    done = run(folder, "-m", "streamer", "plugins", "--json")
    assert done.returncode == 0, done.stderr
    assert "EVIL" not in done.stdout


def test_the_command_is_installed_and_imports_nothing_from_the_working_directory(folder: Path) -> None:
    for name in ("click", "typing", "streamer", "importlib"):
        (folder / f"{name}.py").write_text(EVIL)
    command = Path(sys.executable).parent / "streamer"
    done = subprocess.run([command, "--version"], cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("streamer, version ")


def test_the_module_runs_where_the_package_itself_lies_in_the_working_directory(tmp_path: Path) -> None:
    """As after ``pip install --target .``: what must stay importable is not taken from the path."""
    import streamer
    from streamer import core
    from streamer.core.discovery import search_path

    for package in ("streamer", "streamer/core", "streamer/core/discovery"):
        (tmp_path / package).mkdir()
    home = Path(streamer.__file__).parent
    for name in ("__init__.py", "__main__.py"):
        (tmp_path / "streamer" / name).write_text((home / name).read_text())
    (tmp_path / "streamer/core/__init__.py").write_text(Path(core.__file__).read_text())
    (tmp_path / "streamer/core/discovery/__init__.py").write_text("")
    (tmp_path / "streamer/core/discovery/search_path.py").write_text(Path(search_path.__file__).read_text())
    (tmp_path / "streamer/_cli.py").write_text("def main(prog_name): print('it runs')\n")
    done = run(tmp_path, "-S", "-m", "streamer")
    assert done.stdout == "it runs\n", done.stderr
