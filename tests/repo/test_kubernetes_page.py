"""``docs/integrations/kubernetes.md`` and its examples: the code runs, the objects fit the published schemas."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import torch
import yaml
from click.testing import CliRunner
from pulls import arguments
from safetensors.torch import save_file
from servers.seaweedfs import SeaweedServer

from streamer._cli import main
from streamer._commands import output
from streamer._commands.output import INTERRUPTED, TERMINATED

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "kubernetes"
PAGE = (ROOT / "docs" / "integrations" / "kubernetes.md").read_text(encoding="utf-8")

# The fields of ClusterStorageContainer, v1alpha1, by the models that the package kserve 0.21.0 publishes: metadata and
# spec.container are Kubernetes' own.
FIELDS = {"apiVersion", "kind", "metadata", "spec", "disabled"}
SPEC_FIELDS = {"container", "supportedUriFormats", "supportsMultiModelDownload", "workloadType"}


def objects() -> list[Any]:
    return [
        pytest.param(each, id=f"{path.name}:{each['kind']}:{number}")
        for path in sorted(EXAMPLES.glob("*.yaml"))
        for number, each in enumerate(yaml.safe_load_all(path.read_text()))
    ]


@pytest.mark.parametrize("document", objects())
def test_an_example_fits_its_published_schema(document: dict[str, Any]) -> None:
    newest = kubernetes_validate.latest_version()
    if document["kind"] != "ClusterStorageContainer":
        kubernetes_validate.validate(document, newest, strict=True)
        return
    assert document["apiVersion"] == "serving.kserve.io/v1alpha1"
    assert document.keys() <= FIELDS
    assert document["spec"].keys() <= SPEC_FIELDS
    assert all(
        each.keys() <= {"prefix", "regex"} and len(each) == 1 for each in document["spec"]["supportedUriFormats"]
    )
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": document["metadata"]}
    kubernetes_validate.validate({**pod, "spec": {"containers": [document["spec"]["container"]]}}, newest, strict=True)


def test_a_wrong_field_is_found() -> None:
    (deployment,) = yaml.safe_load_all((EXAMPLES / "init-container.yaml").read_text())
    deployment["spec"]["template"]["spec"]["initContainers"][0]["arg"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)


def test_the_arguments_of_the_examples_are_those_of_the_command(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_file({"w": torch.ones(3)}, model / "model.safetensors")
    for each in objects():
        for container in containers_of(each.values[0]):
            uri, folder, *more = container["args"]
            assert uri.startswith("s3://")
            result = CliRunner().invoke(main, ["pull", str(model), str(tmp_path / folder.strip("/")), *more])
            assert result.exit_code == 0, result.output


def containers_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    return [each for each in pod.get("initContainers", pod.get("containers", [])) if "streamer-pull" in each["image"]]


def test_the_codes_that_end_the_job_are_those_that_no_other_try_mends() -> None:
    _, job = yaml.safe_load_all((EXAMPLES / "volume-job.yaml").read_text())
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    final = [output.USAGE, output.WRONG_DATA, output.NOT_FOUND, output.PROTOCOL, output.DENIED]
    assert rule["onExitCodes"]["values"] == final


def test_the_page_lists_every_exit_code() -> None:
    listed = {int(each) for row in re.findall(r"^\| ([\d, ]+) \|", PAGE, re.M) for each in row.split(",")}
    ours = {value for name, value in vars(output).items() if name.isupper() and isinstance(value, int)}
    assert listed == {0, INTERRUPTED, TERMINATED} | ours


def test_the_example_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    save_file({"w": torch.ones(3)}, tmp_path / "model" / "model.safetensors")
    names: dict[str, Any] = {"url": str(tmp_path / "model"), "folder": str(tmp_path / "copy")}
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "kubernetes.md", "exec"), names)
    assert names["weights"]["w"].equal(torch.ones(3))
    assert capsys.readouterr().out == "1 files\n"


def test_a_pull_needs_no_torch(s3_server: SeaweedServer, tmp_path: Path) -> None:
    s3_server.put("private", "no-torch/a.json", b"{}")
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'safetensors', 'transformers', 'jax']));"
        "from streamer._cli import main; main(sys.argv[1:])"
    )
    reported = arguments("s3://private/no-torch", tmp_path / "copy", options=s3_server.storage_options())
    command = [sys.executable, "-c", program, *reported]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "copy" / "a.json").read_bytes() == b"{}"
