"""`hfx deploy azureml`: the files load in azure-ai-ml, and the scoring script runs as `hfx batch` runs Azure's."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hfx.cli import main
from hfx.deploy import azureml
from hfx.deploy.wheels import NUMPY, TOKENIZERS
from hfx.errors import UsageError
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.files.azure_scripts import Rig
from tests.rigs.files.repositories import build
from tests.rigs.files.wheels import wheels_for
from tests.rigs.machine.tiers import DATA, needs_data

ROOT = Path(__file__).parents[3]
CHECKS = ROOT / ".venv-azure/bin/python"  # `make azure-checks`: azure-ai-ml is in an environment of its own
LOAD = """
import sys
from azure.ai.ml import load_batch_endpoint, load_online_deployment, load_online_endpoint
from azure.ai.ml.entities._load_functions import load_model_batch_deployment
loaders = {"batch_endpoint": load_batch_endpoint, "batch": load_model_batch_deployment,
           "online_endpoint": load_online_endpoint, "online": load_online_deployment}
for argument in sys.argv[1:]:
    kind, _, path = argument.partition("=")
    try:
        print(loaders[kind](path).name)
    except Exception as error:
        print("refused:", " ".join(str(error).split()))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "repository"
    folder.mkdir()
    export_zoo("sentiment-distilbert", folder, "sentiment", "int8")
    return folder


def deploy(repository: Path, output: Path, *words: str) -> dict[str, Any]:
    """Return the YAML files of a folder that the command has written, by name."""
    assert (
        main(["deploy", "azureml", *words, "--arch", "amd64", "--repository", str(repository), "--output", str(output)])
        == 0
    )
    return {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in output.glob("*.yml")}


def test_the_files_have_the_chosen_names_columns_and_settings(tmp_path: Path) -> None:
    repository = build(tmp_path / "repository")
    words = ("m", "--name", "rows", "--compute", "small", "--column", "a: b", "--settings", '{"top_k": 1}')
    files = deploy(repository, tmp_path / "out", *words)
    assert files["endpoint.yml"]["name"] == "rows-batch"
    assert files["conda.yml"]["dependencies"][-1]["pip"][:2] == list(azureml.JOB_PACKAGES)
    deployment = files["m-rows.yml"]
    assert deployment["environment_variables"] == {
        "HFX_MODEL": "m",
        "HFX_COLUMN": "a: b",
        "HFX_SETTINGS": '{"top_k": 1}',
    }
    assert (deployment["endpoint_name"], deployment["compute"]) == ("rows-batch", "azureml:small")


@pytest.mark.parametrize(
    "words",
    [
        ("--device", "gpu"),
        ("--arch", "arm64"),
        ("--kind", "online", "--arch", "arm64"),
        ("--compute", "a b"),
        ("--compute", 'x"\nname: y'),
        ("--name", "n" * 40),
        ("--name", "0rows"),
        ("--settings", "[1]"),
        ("--instance-type", "Standard_DS3_v2"),
        ("--kind", "online", "--column", "text"),
        ("--kind", "online", "--instance-type", "a: b"),
    ],
)
def test_options_that_azure_ml_does_not_accept_are_refused(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    repository = build(tmp_path / "repository")
    line = ["deploy", "azureml", "m", "--repository", str(repository), "--output", str(tmp_path / "out"), *words]
    assert main(line) == 2, capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_models_whose_names_become_one_are_refused() -> None:
    with pytest.raises(UsageError, match="can't be a name"):
        azureml.deployment_names(["a_b" * 20])
    with pytest.raises(UsageError, match="by '_' and '-' only"):
        azureml.deployment_names(["a_b", "a-b"])


@pytest.mark.slow
@needs_data
def test_the_script_scores_rows_of_billsum_as_hfx_batch_does(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv.field_size_limit(1 << 24)
    with (DATA / "billsum" / "billsum-0.csv").open(newline="", encoding="utf-8") as source:
        bills = [row["text"] for _, row in zip(range(8), csv.DictReader(source), strict=False)]
    inputs = tmp_path / "input"
    inputs.mkdir()
    rows = [json.dumps({"text": text}) for text in [*bills[:4], "line\u2028separator"]] + ["{"]
    (inputs / "0.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (inputs / "1.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in bills[4:]), encoding="utf-8")
    (inputs / "2.csv").write_text("text\n", encoding="utf-8")
    deploy(models, tmp_path / "out", "sentiment")
    capsys.readouterr()

    rig = Rig(tmp_path, capsys)
    rig.done("endpoint", "create", "--file", tmp_path / "out/endpoint.yml")
    rig.done("deployment", "create", "--file", tmp_path / "out/sentiment-rows.yml", "--set-default")
    job = rig.wait(rig.done("invoke", "sentiment-batch", "--input", inputs)["name"])
    assert (job["status"], job["mini_batches"], job["failed"]) == ("Completed", 3, 0), rig.log(job["name"])
    written = (Path(job["output"]) / "predictions.jsonl").read_text(encoding="utf-8").split("\n")[:-1]

    line = ["batch", "run", "sentiment", "--repository", str(models), "--output-file-name", "rows.jsonl"]
    expected = []
    for name in ("0.jsonl", "1.jsonl"):
        output = tmp_path / f"expected-{name}"
        own = ["--input", str(inputs / name), "--output", str(output), "--column", "text"]
        assert main([*line, *own]) == 0, capsys.readouterr().err
        of_file = (output / "rows.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        expected += [f'{{"file": "{name}", {text[1:]}' for text in of_file]
    assert written[:-1] == expected
    assert len(expected) == 10 and json.loads(expected[5])["error"]
    last = json.loads(written[-1])
    assert last.pop("file") == "2.csv" and set(last.values()) == {None}


@pytest.mark.full
@pytest.mark.skipif(not CHECKS.is_file(), reason="`make azure-checks` installs azure-ai-ml")
def test_azure_ai_ml_loads_the_files(tmp_path: Path) -> None:
    repository = build(tmp_path / "repository")
    deploy(repository, tmp_path / "batch", "m", "--name", "rows")
    wheels = wheels_for([NUMPY, TOKENIZERS], "3.12")
    deploy(repository, tmp_path / "online", "m", "--name", "texts", "--kind", "online", "--offline", str(wheels))
    good = tmp_path / "batch/m-rows.yml"
    bad = good.with_name("bad.yml")
    bad.write_text(good.read_text().replace("mini_batch_size", "mini_batch_sise"))
    files = {
        "batch_endpoint": tmp_path / "batch/endpoint.yml",
        "online_endpoint": tmp_path / "online/endpoint.yml",
        "online": tmp_path / "online/deployment.yml",
    }
    arguments = [f"{kind}={path}" for kind, path in files.items()] + [f"batch={good}", f"batch={bad}"]
    done = subprocess.run([CHECKS, "-c", LOAD, *arguments], capture_output=True, text=True)
    names = done.stdout.splitlines()
    assert names[:-1] == ["rows-batch", "texts", "main", "m-rows"], done.stdout + done.stderr
    assert names[-1].startswith("refused:") and "mini_batch_sise" in names[-1]
