"""Each command of hfx does its work with the versions that are installed (`make test-versions`).

The commands are run one after the other in one folder, where the later ones use what the earlier ones have written.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hfx.cli.commands import COMMANDS, load
from hfx.errors import ServerError
from hfx.triton.installation import find_wheel
from tests.rigs.servers.serve_process import ServeProcess, infer, serving

CLASSIFY = "infer tiny 'a good film'"
AWS = "--role arn:aws:iam::123456789012:role/hfx --region eu-west-1 --instance-type ml.c7i.xlarge"
LOCAL = [
    "verify tiny",
    "lint",
    "list",
    f"{CLASSIFY} --local",
    "serve --with docker --dry-run",
    "batch run tiny rows.csv --output scored --output-file-name scores.parquet --keep-columns text",
    "batch run tiny scored/scores.parquet --output again",
    "batch resume again",
    "batch list",
    "batch show scored",
    "batch logs scored",
    "batch publish scored",
    "batch azure endpoint create reviews",
    "batch azure endpoint show reviews",
    "batch azure endpoint list",
    "batch azure endpoint update reviews --set description=Reviews",
    "batch azure deployment create blue --endpoint-name reviews --file deployment.yml --set-default",
    "batch azure deployment show blue --endpoint-name reviews",
    "batch azure deployment list --endpoint-name reviews",
    "batch azure deployment update blue --endpoint-name reviews --set settings.mini_batch_size=4",
    "batch azure invoke reviews --input rows.csv --job-name job --wait",
    "batch azure list-jobs reviews",
    "batch azure job show job",
    "batch azure job stream job",
    "batch azure job download job --download-path downloaded",
    "batch azure deployment delete blue --endpoint-name reviews --yes",
    "batch azure endpoint delete reviews --yes",
    "deploy bundle tiny --output bundle --no-numpy",
    "deploy docker tiny --output docker",
    "deploy compose tiny --output compose",
    "deploy kubernetes tiny --output kubernetes --image registry.example/hfx:1",
    "deploy kserve tiny --output kserve --storage-uri s3://models/tiny",
    "deploy azureml tiny --output azureml",
    "deploy sagemaker tiny --output sagemaker " + AWS,
    "deploy check bundle",
    "perf tools",
]
SERVED = [
    f"{CLASSIFY} --url {{grpc_url}}",
    f"{CLASSIFY} --url {{http_url}}",
    "verify tiny --url {grpc_url}",
    "deploy check {http_url} tiny",
    "batch run tiny rows.csv --output served --url {grpc_url}",
    "perf run tiny --url {grpc_url} --requests 20 --warmup 2 --output load.json",
    "perf run tiny --url {grpc_url} --requests 20 --warmup 2 --tool locust --output locust.json",
    "perf report load.json --output report.html --svg pictures",
    "perf compare load.json locust.json",
    "reload tiny",
    "remove tiny --force",
]
# Refused, since these jobs have ended -> the words of the refusal.
REFUSED = {
    "batch cancel scored": "scored is completed.",
    "batch azure job cancel job": "The job job is Completed.",
    "batch azure job resume job": "The job job is Completed.",
}
LONG = {"demo", "tune"}  # they run for minutes
DEPLOYMENT = """
type: model
model: azureml:tiny@latest
"""


def names(prefix: str = "", table: Mapping[str, str] = COMMANDS) -> Iterator[str]:
    """Yield the full name of every command that is not a group."""
    for name in table:
        group = load(name, table)
        yield from names(f"{prefix}{name} ", group.table) if hasattr(group, "table") else [prefix + name]


def hfx(folder: Path, line: str, code: int = 0) -> str:
    """Return what `hfx LINE` prints in `folder`: its result, or the error if the exit code has to be another than 0."""
    program = Path(sys.executable).parent / "hfx"
    done = subprocess.run([program, *shlex.split(line)], capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == code, f"{line}\n{done.stdout}{done.stderr}"
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository of one published model, the classifier `tiny`, and a table of texts."""
    pytest.importorskip("torch")
    from tests.rigs.checkpoints import tiny_checkpoints

    folder = tmp_path_factory.mktemp("versions")
    tiny_checkpoints.save(folder / "checkpoint", tiny_checkpoints.bert())
    hfx(folder, "export checkpoint --name tiny --device cpu")
    (folder / "rows.csv").write_text("text\na good film\nthe cat sat\n", encoding="utf-8")
    (folder / "deployment.yml").write_text(DEPLOYMENT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServeProcess]:
    """`hfx serve`, which serves `tiny`."""
    try:
        find_wheel()
    except ServerError as missing:
        pytest.skip(str(missing))
    with serving(folder / "model_repository") as running:
        yield running


def test_every_command_is_run() -> None:
    run = {name for name in names() if any(f"{line} ".startswith(f"{name} ") for line in (*LOCAL, *REFUSED, *SERVED))}
    assert run == set(names()) - LONG - {"export"}  # a fixture exports


@pytest.mark.parametrize("name", ["", *names()])
def test_the_help_is_printed(name: str, tmp_path: Path) -> None:
    assert hfx(tmp_path, f"{name} --help").startswith(f"Usage: hfx {name}".rstrip())


@pytest.mark.parametrize("line", LOCAL)
def test_a_command_succeeds(line: str, folder: Path) -> None:
    hfx(folder, line)


@pytest.mark.parametrize("line", REFUSED)
def test_a_command_is_refused(line: str, folder: Path) -> None:
    assert REFUSED[line] in hfx(folder, line, code=2)


def test_a_served_answer_is_that_of_the_model_in_this_process(folder: Path, server: ServeProcess) -> None:
    here = json.loads(hfx(folder, f"{CLASSIFY} --local --json"))["results"][0]
    assert infer(server.http_url, "tiny", "a good film") == here["label"]


@pytest.mark.parametrize("line", SERVED)
def test_a_command_succeeds_with_a_server(line: str, folder: Path, server: ServeProcess) -> None:
    hfx(folder, line.format(**server.ready))
