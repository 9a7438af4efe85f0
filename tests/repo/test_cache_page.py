"""``docs/cache.md`` is true: its example runs, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

from comparison import assert_same
from servers.one_file import one_file, place_of

from streamer import _native
from streamer._commands.cache import cache
from streamer.core.options.options import Options

PAGE = (Path(__file__).resolve().parents[2] / "docs/cache.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_example_runs(tmp_path: Path) -> None:
    with one_file() as server:
        uri, _ = place_of("http", server)
        names = {"uri": uri, "folder": tmp_path / "cache"}
        (example,) = EXAMPLES
        exec(compile(example, "docs/cache.md", "exec"), names)
        assert_same(names["second"], names["first"])
    assert _native.finish_cache_writes(10)
    assert list(tmp_path.glob("cache/v1/*/object.json"))


def test_the_commands_and_options_that_it_names_exist() -> None:
    named = set(re.findall(r"streamer cache (\w+)", PAGE))
    assert named == set(cache.commands)
    assert {"cache_dir", "cache_bytes"} <= set(Options.__dataclass_fields__)
    for option in re.findall(r"STREAMER_(\w+)", PAGE):
        assert option.lower() in Options.__dataclass_fields__
