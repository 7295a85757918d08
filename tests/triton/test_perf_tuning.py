"""`hfx tune` on a real Triton: a gain that is there is found, proven and written; nothing else is."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hfx.client import Client
from hfx.perf.results import Result, read_result
from hfx.perf.tuning.settings import current, edits
from hfx.repository import lint, model
from hfx.repository.edit import change
from hfx.repository.staging import stagings
from hfx.triton import EmbeddedServer
from tests.triton.perf_rig import CLASSIFIER, GENERATOR, HFX, Ended

pytestmark = [pytest.mark.triton, pytest.mark.slow]

TEXTS = ["A lovely garden.", "It was bad, and it rained.", "", "The bread was old " * 30]
SLOW = 20_000  # microseconds that the net's batches wait: what a search must find and undo
PATIENCE = 300  # seconds
LOAD = ("--concurrency", "2", "--budget", "60s", "--rounds", "3", "--trials", "2")


@pytest.fixture
def slowed(perf_models: Path, tmp_path: Path) -> Path:
    """A repository of CLASSIFIER with a delay that nobody needs, and GENERATOR."""
    repository = tmp_path / "models"
    shutil.copytree(perf_models, repository)
    wanted = edits(repository, model(repository, CLASSIFIER), {"max_queue_delay": SLOW})
    change(repository, CLASSIFIER, wanted, "hfx test")
    return repository


def tune(repository: Path, name: str, *words: str) -> Ended:
    study = ("--study", str(repository.parent / "study.db"))
    command = [*HFX, "tune", name, "--repository", str(repository), *study, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def delay(repository: Path) -> int:
    return current(repository, model(repository, CLASSIFIER))["max_queue_delay"]


def answers(repository: Path) -> list[tuple[Any, ...]]:
    with EmbeddedServer(repository, models=[CLASSIFIER]) as server, Client(server.grpc_url) as client:
        return [(answer.label, answer.score) for answer in client.classify(CLASSIFIER, TEXTS)]


def snapshot(repository: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(repository.rglob("*")) if path.is_file() and path.name != ".hfx-lock")
    return {str(path.relative_to(repository)): path.read_bytes() for path in paths}


def test_a_gain_is_found_proven_and_written(slowed: Path, tmp_path: Path) -> None:
    before, output = answers(slowed), tmp_path / "tuned.json"
    words = ("--settings", "max_queue_delay", "--slo", "latency<1s", "--apply", "--output", str(output))
    ended = tune(slowed, CLASSIFIER, *LOAD, *words)
    assert ended.returncode == 0, ended.stderr
    assert "Proven: x" in ended.stdout
    assert f"Written into {CLASSIFIER}" in ended.stdout
    assert delay(slowed) < SLOW
    assert answers(slowed) == before
    assert [found for found in lint(slowed) if found.severity == "error"] == []
    assert stagings(slowed) == []
    recorded: Any = model(slowed, CLASSIFIER).choices["tuned"]
    assert (recorded["by"], recorded["slo"], recorded["load"]) == ("hfx tune sentiment", "latency<1s", "2 callers")
    check_result(read_result(output), delay(slowed))


def check_result(found: Result, chosen: int) -> None:
    assert found.kind == "tune"
    assert found.details["proven"] is True
    assert found.details["applied"] == CLASSIFIER
    assert found.details["published"] == {"max_queue_delay": SLOW}
    assert found.details["settings"] == {"max_queue_delay": chosen}
    trials = {run.subject.label: run for run in found.runs if run.load.case != "final"}
    assert next(iter(trials)) == "published"
    assert len(trials) == found.details["trials"]
    assert all(run.requests.failed == 0 and run.server and run.server.steps for run in found.runs)
    final = [run for run in found.runs if run.load.case == "final"]
    assert {(run.subject.label, run.round) for run in final} == {
        (label, number) for label in ("published", found.details["best"]) for number in (1, 2, 3)
    }


@pytest.mark.full
def test_nothing_is_written_without_apply_and_the_same_study_goes_on(slowed: Path) -> None:
    published = snapshot(slowed)
    words = (*LOAD, "--settings", "max_queue_delay", "--json")
    first = json.loads(tune(slowed, CLASSIFIER, *words).stdout)
    second = tune(slowed, CLASSIFIER, *words)
    assert snapshot(slowed) == published
    assert "Going on with" in second.stderr
    results = (first, json.loads(second.stdout))
    before, after = ([run for run in each["runs"] if run["load"]["case"] != "final"] for each in results)
    assert before == after


@pytest.mark.full
def test_a_killed_tune_leaves_the_model_whole_and_is_resumed(slowed: Path) -> None:
    before = snapshot(slowed)
    words = ["--repository", str(slowed), "--study", str(slowed.parent / "study.db"), "--settings", "max_queue_delay"]
    with subprocess.Popen([*HFX, "tune", CLASSIFIER, *words, *LOAD], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("published:"):
                break
        process.send_signal(signal.SIGKILL)
    assert len(stagings(slowed)) == 1
    ended = tune(slowed, CLASSIFIER, *LOAD, "--settings", "max_queue_delay")
    assert ended.returncode == 0, ended.stderr
    assert "Going on with 1 trials" in ended.stderr
    assert stagings(slowed) == []
    assert snapshot(slowed) == before


@pytest.mark.full
def test_ctrl_c_keeps_the_trials(slowed: Path, tmp_path: Path) -> None:
    output = tmp_path / "partial.json"
    words = ["--repository", str(slowed), "--study", str(tmp_path / "s.db"), "--output", str(output)]
    with subprocess.Popen([*HFX, "tune", CLASSIFIER, *words, *LOAD], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("published:"):
                process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    found = read_result(output)
    assert next(run.subject.label for run in found.runs) == "published"
    assert any("Interrupted" in note for note in found.notes)
    assert stagings(slowed) == []


@pytest.mark.full
def test_a_generator_is_tuned_through_its_streams(slowed: Path, tmp_path: Path) -> None:
    output = tmp_path / "tuned.json"
    words = ("--slo", "ttft<5s,tpot<1s", "--set", "max_tokens=8", "--output", str(output))
    ended = tune(slowed, GENERATOR, *LOAD, *words)
    assert ended.returncode == 0, ended.stderr
    found = read_result(output)
    assert all(run.ttft and run.tokens_per_second and run.goodput == 1.0 for run in found.runs)
    assert {name for run in found.runs for name in run.subject.settings} <= {"threads", "slots", "max_queue_size"}


@pytest.mark.full
def test_a_target_that_nothing_keeps_ends_with_the_best_found(slowed: Path, tmp_path: Path) -> None:
    output = tmp_path / "none.json"
    words = ("--settings", "max_queue_delay", "--slo", "latency<1us", "--apply", "--output", str(output))
    ended = tune(slowed, CLASSIFIER, *LOAD, *words)
    assert ended.returncode == 5
    assert "No settings keep latency<1us: at best 0.0 % of the requests did, with max_queue_delay=" in ended.stderr
    assert delay(slowed) == SLOW
    assert read_result(output).details["proven"] is False


@pytest.mark.parametrize(
    ("name", "words", "code", "message"),
    [
        ("nobody", (), 3, "There is no model 'nobody'"),
        (CLASSIFIER, ("--budget", "3s"), 2, "A budget of 3 s is too small for two trials"),
        (CLASSIFIER, ("--settings", "slots"), 2, "has no setting 'slots' to tune"),
        (CLASSIFIER, ("--slo", "quick<1s"), 2, "quick"),
        (CLASSIFIER, ("--arrivals", "burst"), 2, "steady"),
        (CLASSIFIER, ("--output", "/nowhere/result.json"), 2, "can't be written"),
    ],
)
def test_wrong_use_is_told_in_a_line(
    perf_models: Path, tmp_path: Path, name: str, words: tuple[str, ...], code: int, message: str
) -> None:
    link = tmp_path / "models"
    link.symlink_to(perf_models)
    ended = tune(link, name, *words)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert message in ended.stderr
