"""The soak, with other loaders in this project's place: how many of their loads end wrong, hang, or fail.

    cd tests && python -m faults.rivals --loads 200 --seed 7
    cd tests && python -m faults.rivals --by-fault        # which fault ends how, made in a third of the requests

Each rival loads in a process of its own, which is ended and replaced when a load takes longer than a minute: that
counts as hung. Every loader meets the same drawn faults. Rivals are called as their documentation says, with no
tuning; `other_errors` are failures where only passing faults were made. ``--by-fault`` leaves the first bytes of each
object alone, so that headers are read well and the fault meets weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from comparison import tensors_of

from faults.catalogue import Fault
from faults.loaders import environment_of
from faults.server import Asked, FaultServer
from faults.soak import AUDIBLE, Loaded, Soak, is_equal, load_ours, made_bucket

HANGS_AFTER_S = 60
HEADERS_END_BEFORE = 20_000  # the checkpoint's, a few kB each

WORKER = """
import json, sys
from safetensors.torch import save_file
from faults.loaders import LOADERS

url, given, out = json.loads(sys.stdin.readline())
save_file(LOADERS[sys.argv[1]](url, given, {})[0], out)
"""


class HungError(Exception):
    """A load did not end within a minute."""


class FailedError(Exception):
    """A load failed; named like its exception."""


def rival(name: str) -> Any:
    """Return a function that loads with a rival, in a process of its own."""

    def load(url: str, options: dict[str, Any], patience_s: float = 0) -> dict[str, Any]:  # each has its own
        from safetensors.torch import load_file

        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/out.safetensors"
            worker = subprocess.Popen(
                [sys.executable, "-c", WORKER, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment_of(options),
            )
            try:
                _, errors = worker.communicate(json.dumps([url, options, out]) + "\n", timeout=HANGS_AFTER_S)
            except subprocess.TimeoutExpired as error:
                raise HungError from error
            finally:
                worker.kill()
                worker.communicate()
            if worker.returncode != 0:
                raise FailedError((errors.strip().splitlines() or ["no message"])[-1][:80])
            return dict(load_file(out))

    return load


def soak(loads: int, threads: int, seed: int, bucket: Path) -> None:
    """Print how the loads of each loader ended."""
    head = f"{'loader':22}{'equal':>7}{'right error':>13}{'failed':>8}{'hung':>6}{'WRONG':>7}{'requests':>10}"
    print(f"{head}\n{'-' * len(head)}", flush=True)
    for name, load in LOADERS.items():
        tally = Soak(bucket, load, outage_share=0).run(loads, threads, seed)  # outages have a table of their own
        hung = sum(count for what, count in tally.other_errors.items() if what.startswith("Hung"))
        failed = sum(tally.other_errors.values()) - hung
        print(
            f"{name:22}{tally.equal:7}{tally.expected_errors:13}{failed:8}{hung:6}{tally.wrong:7}{tally.requests:10}",
            flush=True,
        )


def by_fault(bucket: Path) -> None:
    """Print how one load of each loader ended under each fault."""
    expected = tensors_of(bucket / "model")
    print(f"{'fault':26}" + "".join(f"{name:>22}" for name in LOADERS), flush=True)
    for fault in AUDIBLE:
        ends = [_end_under(fault, load, bucket, expected) for load in LOADERS.values()]
        print(f"{fault.name:26}" + "".join(f"{end:>22}" for end in ends), flush=True)


def _end_under(fault: Fault, load: Any, bucket: Path, expected: Loaded) -> str:
    def script(asked: Asked) -> Fault | None:
        return fault if asked.begin > HEADERS_END_BEFORE and asked.number % 3 == 1 else None

    with FaultServer(bucket, script) as server:
        try:
            loaded = load(server.url("model"), server.storage_options())
        except HungError:
            return "hung"
        except Exception as error:
            return "error" if isinstance(error, FailedError) else type(error).__name__
        if not server.faults:
            return "not met"
    return "equal" if is_equal(loaded, expected) else "WRONG"


LOADERS = {"streamer": load_ours, "s3fs": rival("s3fs"), "runai": rival("runai")}


@click.command()
@click.option("--loads", default=200, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--seed", default=7, show_default=True)
@click.option("--by-fault", "is_by_fault", is_flag=True, help="One load of each loader under each fault instead.")
def main(loads: int, threads: int, seed: int, is_by_fault: bool) -> None:
    """Print how the loads of each loader ended."""
    with tempfile.TemporaryDirectory() as folder:
        bucket = made_bucket(Path(folder))
        if is_by_fault:
            by_fault(bucket)
        else:
            soak(loads, threads, seed, bucket)


if __name__ == "__main__":
    main(prog_name="python -m faults.rivals")
