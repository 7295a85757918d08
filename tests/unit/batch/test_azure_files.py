"""The YAML files of `az ml`: both schemas, refusals with file and line, and Azure's own parser on hfx's files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.batch.azure.deployment import Deployment, Settings, parse_deployment
from hfx.batch.azure.documents import dump, parse_document, read_document, with_settings
from hfx.errors import UsageError
from tests.rigs.files.azure_scripts import ENDPOINT, Rig
from tests.zoo.cache import built

AZURE = "azure-ai-ml==1.35.2"
MODERN = """
$schema: https://azuremlschemas.azureedge.net/latest/batchDeployment.schema.json
name: summaries
endpoint_name: texts-batch
description: Summaries of bills
tags: {team: texts}
type: model
model: {path: weights, type: custom_model}
code_configuration:
  code: code
  scoring_script: score.py
environment:
  image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04:latest
  conda_file: conda.yml
compute: azureml:gpu-cluster
resources:
  instance_count: 2
settings:
  max_concurrency_per_instance: 3
  mini_batch_size: 1
  output_action: append_row
  output_file_name: summaries.csv
  retry_settings:
    max_retries: 1
    timeout: 3000
  error_threshold: 5
  logging_level: INFO
  environment_variables: {LENGTH: 30, STYLE: plain}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the documents of these tests refer to."""
    for name in ("code", "weights"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "score.py").write_text("def init(): ...\ndef run(files): return files\n", encoding="utf-8")
    (tmp_path / "conda.yml").write_text("dependencies: [python=3.11]\n", encoding="utf-8")
    return tmp_path


def parsed(text: str, folder: Path) -> Deployment:
    return parse_deployment(parse_document(text, "d.yml"), folder, folder / "repository")


def test_the_older_yaml_schema_gives_the_same_deployment(folder: Path) -> None:
    head, settings = MODERN.replace("type: model\n", "").split("settings:\n", 1)
    older = head + "\n".join(line.removeprefix("  ") for line in settings.splitlines())
    deployment = parsed(older, folder)
    assert replace(deployment, has_type=True) == parsed(MODERN, folder)
    assert parsed(dump(deployment.document()), Path("/")) == deployment


def test_omitted_settings_have_azures_defaults(folder: Path) -> None:
    text = "name: abc\nendpoint_name: abc\ncode_configuration: {code: code, scoring_script: score.py}\n"
    assert parsed(text, folder).settings == Settings(
        instance_count=1, max_concurrency_per_instance=1, mini_batch_size=None, max_retries=3, timeout=30,
        error_threshold=-1, output_action="append_row", output_file_name="predictions.csv", logging_level="info",
    )  # fmt: skip


def test_a_written_deployment_reads_as_the_same(folder: Path) -> None:
    deployment = parsed(MODERN, folder)
    assert deployment.settings.environment_variables == {"LENGTH": "30", "STYLE": "plain"}
    assert parsed(dump(deployment.document()), Path("/")) == deployment


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  mini_batch_size: 1", "  mini_batch_sise: 1", "d.yml, line 20: settings.mini_batch_sise is an unknown key"),
        ("  mini_batch_size: 1", "  mini_batch_size: 0", "line 20: settings.mini_batch_size must be an integer of at"),
        ("  mini_batch_size: 1", "  mini_batch_size: true", "line 20: settings.mini_batch_size must be an integer"),
        ("    timeout: 3000", "    timeout: 3000\n    timeout: 4", "d.yml, line 26: 'timeout' stands twice"),
        ("  output_action: append_row", "  output_action: append", "must be one of append_row, summary_only"),
        ("summaries.csv", "../summaries.csv", "settings.output_file_name must be the name of a file"),
        ("type: model", "type: pipeline", "line 7: type can't be pipeline"),
        ("type: model\n", "", "d.yml, line 17: settings does not belong at the root"),
        ("compute:", "error_threshold: 1\ncompute:", "error_threshold does not belong at the root"),
        ("scoring_script: score.py", "scoring_script: ../conda.yml", "scoring_script is not a file of"),
        ("code: code", "code: nowhere", "nowhere, which does not exist"),
        ("{path: weights, type: custom_model}", "azureml:absent@latest", "line 8: model is not in"),
        ("{path: weights, type: custom_model}", "azureml:absent:7", "line 8: model names no model"),
        ("name: summaries", "name: s/../x", "which is not a name"),
        ("{LENGTH: 30,", "{LENGTH: [1],", "settings.environment_variables.LENGTH must be text or a number"),
        ("{LENGTH: 30,", "{AZUREML_MODEL_DIR: x,", "AZUREML_MODEL_DIR can't be set"),
        ("tags: {team: texts}", "tags: &a [1]\nproperties: *a", "d.yml, line 7: aliases are refused"),
        ("Summaries of bills", "!!python/object/apply:os.system [x]", "line 5: the tag"),
        ("Summaries of bills", "!!bool x", "line 5: "),
        ("Summaries of bills", "!!python/name:os.system x", "line 5: could not determine"),
        ("Summaries of bills", "[" * 50000, "line 5: is nested deeper than 16"),
        ("Summaries of bills", "\0", "d.yml can't be read as YAML"),
    ],
)  # fmt: skip
def test_an_invalid_deployment_is_refused_with_file_and_line(old: str, new: str, message: str, folder: Path) -> None:
    assert old in MODERN
    with pytest.raises(UsageError) as refusal:
        parsed(MODERN.replace(old, new, 1), folder)
    assert message in refusal.value.message


@pytest.mark.parametrize("content", [b"", b"- 1\n", b"\xff\xfe\x00", b"a: " + b"x" * (300 << 10)])
def test_a_file_that_is_no_document_is_refused(content: bytes, folder: Path) -> None:
    (folder / "d.yml").write_bytes(content)
    with pytest.raises(UsageError):
        parse_deployment(read_document(folder / "d.yml"), folder, folder)


def test_set_changes_a_key_and_is_named_in_refusals(folder: Path) -> None:
    document = parse_document(MODERN, "d.yml")
    changed = with_settings(document, ["settings.retry_settings.timeout=7", "resources.instance_count=1", "tags.a=b"])
    deployment = parse_deployment(changed, folder, folder)
    assert (deployment.settings.timeout, deployment.settings.instance_count) == (7, 1)
    assert deployment.azure_only["tags"] == {"team": "texts", "a": "b"}
    for setting, message in {"settings.x=1": "unknown key", "x": "no form KEY=VALUE", "name.x=1": "mapping"}.items():
        with pytest.raises(UsageError, match=message):
            parse_deployment(with_settings(document, [setting]), folder, folder)


# Endpoints and deployments


@pytest.fixture
def rig(folder: Path, capsys: pytest.CaptureFixture[str]) -> Rig:
    return Rig(folder, capsys)


def test_endpoints_and_deployments_are_created_listed_changed_and_deleted(rig: Rig) -> None:
    rig.deploy(name="first")
    rig.deploy(name="second", default=False)
    listed = rig.done("deployment", "list", "--endpoint-name", ENDPOINT)["deployments"]
    assert [entry["name"] for entry in listed] == ["first", "second"]
    assert rig.done("endpoint", "show", ENDPOINT)["defaults"] == {"deployment_name": "first"}
    rig.done("endpoint", "update", "--name", ENDPOINT, "--set", "defaults.deployment_name=second")
    assert rig.done("endpoint", "list")["endpoints"][0]["defaults"] == {"deployment_name": "second"}
    words = ("--name", "second", "-e", ENDPOINT)
    rig.done("deployment", "update", *words, "--set", "settings.mini_batch_size=4")
    assert rig.done("deployment", "show", *words)["settings"]["mini_batch_size"] == 4
    rig.done("deployment", "delete", *words, "--yes")
    assert "defaults" not in rig.done("endpoint", "show", ENDPOINT)
    assert rig.hfx("invoke", ENDPOINT, "--input", rig.folder / "code")[0] == 2
    for command in ("show", "update", "delete"):
        for absent in ("third", "..", "x" * 5000):
            assert rig.hfx("deployment", command, absent, "-e", ENDPOINT)[0] == 2
            assert rig.hfx("endpoint", command, absent)[0] == 2
    assert rig.hfx("job", "show", "x" * 5000)[0] == 2
    assert rig.hfx("endpoint", "update", ENDPOINT, "--set", "defaults.deployment_name=second")[0] == 2


def test_a_deleted_endpoint_leaves_its_jobs(rig: Rig) -> None:
    rig.deploy()
    job = rig.wait(rig.invoke("--input", rig.files(1))["name"])
    rig.done("endpoint", "delete", ENDPOINT, "-y")
    assert rig.done("endpoint", "list") == {"endpoints": []}
    assert [entry["name"] for entry in rig.done("list-jobs", "--name", ENDPOINT)["jobs"]] == [job["name"]]
    for text in ("[]", "{", '{"files": 5}'):
        damaged = rig.workspace / "jobs/damaged/invocation.json"
        damaged.parent.mkdir(exist_ok=True)
        damaged.write_text(text)
        assert [entry["name"] for entry in rig.done("list-jobs")["jobs"]] == [job["name"]]
    rig.done("job", "download", "--name", job["name"], "--download-path", rig.folder / "down", "--all")
    assert (rig.folder / "down/named-outputs/score/predictions.csv").read_text(encoding="utf-8") == "00.txt\n"
    assert (rig.folder / "down/artifacts/logs/driver.txt").is_file()
    assert rig.hfx("job", "download", job["name"], "-p", rig.folder / "down")[0] == 2


def test_a_deployment_keeps_the_code_that_it_was_created_with(rig: Rig) -> None:
    rig.deploy()
    (rig.folder / "code-first" / "score.py").write_text("raise ValueError\n", encoding="utf-8")
    job = rig.wait(rig.invoke("--input", rig.files(1))["name"])
    assert job["status"] == "Completed", rig.log(job["name"])


# Azure's own parser


@pytest.fixture(scope="module")
def azure() -> Path:
    """A folder to import azure-ai-ml from, which keeps its 45 packages out of the environment of the tests."""

    def install(folder: Path) -> dict[str, Any]:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        subprocess.run([*command, "--target", folder, AZURE], check=True, timeout=300)
        return {}

    return built("azure-ai-ml", hashlib.sha256(f"{AZURE} {sys.version}".encode()).hexdigest()[:16], install)


LOADING = """
import json, sys
from azure.ai.ml import load_batch_deployment, load_batch_endpoint
from azure.ai.ml.entities._load_functions import load_model_batch_deployment  # what az calls for `type: model`
endpoints, plain, typed = json.loads(sys.argv[1])
for path in endpoints:
    endpoint = load_batch_endpoint(path)
    print(json.dumps([endpoint.name, endpoint.defaults and endpoint.defaults.deployment_name]))
loaded = [*map(load_batch_deployment, plain), *map(load_model_batch_deployment, typed)]
for deployment in loaded:
    settings = getattr(deployment, "settings", None) or deployment
    script = deployment.code_configuration and deployment.code_configuration.scoring_script
    print(json.dumps([deployment.name, settings.mini_batch_size, settings.retry_settings.timeout, script]))
"""


RESULTS = """
    import numpy, pandas
    def init():
        pass
    def run(files):
        kind = open(files[0]).read()
        table = pandas.DataFrame({"file": ["a b", "c"], "score": [0.5, 1], "text": ['q"', None]})
        results = {"table": table, "series": table["file"], "array": numpy.arange(2), "lists": [["a", 1], ("b\\n", 2)]}
        return results[kind]
"""


def test_tables_and_lists_are_written_as_azure_does(rig: Rig) -> None:
    rig.deploy(RESULTS, yaml="settings: {mini_batch_size: 1}")
    files = rig.files(4)
    for number, kind in enumerate(("table", "series", "array", "lists")):
        (files / f"{number:02d}.txt").write_text(kind, encoding="utf-8")
    job = rig.wait(rig.invoke("--input", files)["name"])
    assert (job["status"], job["failed"]) == ("Completed", 0), rig.log(job["name"])
    assert (Path(job["output"]) / "predictions.csv").read_text(encoding="utf-8").splitlines() == [
        '"a b" 0.5 "q"""', 'c 1.0 ', "a b", "c", "0", "1", "['a', 1]", "('b\\n', 2)"
    ]  # fmt: skip


@pytest.mark.slow
def test_azures_own_parser_reads_the_stored_files(rig: Rig, azure: Path) -> None:
    older = f"""
name: older
endpoint_name: {ENDPOINT}
code_configuration: {{code: code, scoring_script: score.py}}
compute: azureml:cpu
mini_batch_size: 5
retry_settings: {{timeout: 8}}
"""
    rig.done("endpoint", "create", "--name", ENDPOINT)
    for name, text in {"older": older, "summaries": MODERN}.items():
        (rig.folder / f"{name}.yml").write_text(text, encoding="utf-8")
        rig.done("deployment", "create", "-f", rig.folder / f"{name}.yml", "--set-default")
    rig.deploy(name="bare")
    job = rig.wait(rig.invoke("--input", rig.files(1))["name"])
    stored = rig.workspace / "endpoints" / ENDPOINT
    plain = [rig.folder / "older.yml", stored / "deployments/older.yml"]
    typed = [rig.folder / "summaries.yml", stored / "deployments/summaries.yml"]
    typed += [stored / "deployments/bare.yml", rig.workspace / "jobs" / job["name"] / "deployment.yml"]
    paths = json.dumps([[str(path) for path in group] for group in ([stored / "endpoint.yml"], plain, typed)])
    command = [sys.executable, "-W", "ignore", "-c", LOADING, paths]
    environment = os.environ | {"PYTHONPATH": str(azure)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=rig.folder)
    assert done.returncode == 0, done.stderr[-3000:]
    older_read, typed_read = ["older", 5, 8, "score.py"], ["summaries", 1, 3000, "score.py"]
    bare = ["bare", 10, 30, "score.py"]
    read = [[ENDPOINT, "bare"], older_read, older_read, typed_read, typed_read, bare, bare]
    assert [json.loads(line) for line in done.stdout.splitlines()] == read
