"""A job run by the ranks of a launcher: one rank is killed, and the job ends in the same bytes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from hfx.batch.folder import Folder
from hfx.batch.plan import Shard, parse_shard
from hfx.cli.commands import load
from hfx.errors import JobCancelled
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import RUNTIMES, WRITERS

MANIFEST = Path(__file__).parents[3] / "examples" / "kubernetes-batch.yml"
pytestmark = pytest.mark.slow

PROCESSES, ROWS, ROWS_OF_A_CHUNK = 3, 180, 4
CHUNKS = ROWS // ROWS_OF_A_CHUNK


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    export_zoo(WRITERS["summaries"], folder, "summaries", "int8", RUNTIMES["summaries"], slots=8)
    return folder


def hfx_batch(*words: str | Path, rank: int | None = None) -> subprocess.Popen[str]:
    variables = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": str(PROCESSES)}
    command = [
        sys.executable,
        "-c",
        "import sys; from hfx.cli import main; sys.exit(main())",
        "batch",
        *map(str, words),
    ]
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, messages = process.communicate(timeout=300)
    return process.returncode, output + messages


@pytest.mark.full
def test_a_killed_rank_is_named_and_resumed_to_the_same_bytes(repository: Path, tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        texts = [f"Bill {number} is about a tax on salt.\nIt is new." for number in range(ROWS)]
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    options = ["summaries", table, "--repository", repository, "--mini-batch-size", str(ROWS_OF_A_CHUNK)]
    folder, undisturbed = tmp_path / "job", tmp_path / "undisturbed"

    shards = [hfx_batch("run", *options, "--output", folder, "--shard", "env", rank=rank) for rank in range(PROCESSES)]
    own = set(Shard(1, PROCESSES).chunks(CHUNKS))
    wait_until(lambda: own & Folder(folder).done(), "a part of rank 1")
    shards[1].kill()
    codes = [ended(shard)[0] for shard in shards]
    missing = set(range(CHUNKS)) - Folder(folder).done()
    assert codes == [0, -9, 0]
    assert missing and missing < own and not (folder / "predictions.csv").exists()

    code, text = ended(hfx_batch("publish", folder))
    assert code == 2
    assert f"{len(missing)} of {CHUNKS} parts" in text and "of the shards 1/3" in text

    code, text = ended(hfx_batch("resume", folder, "--shard", "env", "--json", rank=1))
    assert code == 0, text
    assert json.loads(text.splitlines()[0])["rows"] == ROWS
    assert ended(hfx_batch("run", *options, "--output", undisturbed))[0] == 0
    assert (folder / "predictions.csv").read_bytes() == (undisturbed / "predictions.csv").read_bytes()


def test_shard_env_without_a_launchers_variables_is_refused(tmp_path: Path) -> None:
    job = ["run", "summaries", tmp_path / "texts.csv", "--output", tmp_path / "job"]
    code, text = ended(hfx_batch(*job, "--shard", "env"))
    assert code == 2 and "found no launcher's variables" in text


def test_the_manifest_of_kubernetes_has_a_command_that_parses() -> None:
    document = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    kubernetes_validate.validate(document, "1.37", strict=True)
    job = document["spec"]
    container = job["template"]["spec"]["containers"][0]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["JOB_COMPLETIONS"] == str(job["completions"]) and job["completionMode"] == "Indexed"
    assert parse_shard("env", {**variables, "JOB_COMPLETION_INDEX": "5"}) == Shard(5, job["completions"])
    [rule] = job["podFailurePolicy"]["rules"]  # pods of a cancelled job are not started again
    codes = {"containerName": container["name"], "operator": "In", "values": [JobCancelled.exit_code]}
    assert rule == {"action": "FailJob", "onExitCodes": codes}
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # a policy needs it
    words = [*container["command"], *container["args"]]
    assert words[:3] == ["hfx", "batch", "run"]
    context = load("batch").make_context("batch", words[2:])
    run = load("batch").get_command(context, "run")
    values = run.make_context("run", words[3:]).params
    assert values["shard"] == "env" and values["inputs"] == ["/data/reviews.csv"]
