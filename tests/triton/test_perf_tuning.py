"""`hfx tune` on a real Triton finds, proves and writes a real gain, and nothing else."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hfx.perf.results import Result, read_result
from hfx.perf.settings import current, edits
from hfx.repository import lint, model
from hfx.repository.edit import change
from hfx.repository.staging import stagings
from tests.rigs.servers.perf_server import CLASSIFIER, GENERATOR, Ended

pytestmark = [pytest.mark.triton, pytest.mark.slow]

# hfx, whose measurements last half a second: the budget is ample on a busy machine too, and that shows a gain as large.
HFX = [
    sys.executable,
    "-c",
    "import sys; from hfx.perf.tuning import tune; tune.LONGEST = 0.5; from hfx.cli import main; sys.exit(main())",
]
SLOW = 20_000  # microseconds that the net's batches wait: the search must find and undo this
PATIENCE = 300  # seconds
LOAD = ("--concurrency", "2", "--budget", "600s", "--rounds", "3", "--trials", "2")
DELAY = ("--settings", "max_queue_delay")


@pytest.fixture
def slowed(perf_models: Path, tmp_path: Path) -> Path:
    """A repository of CLASSIFIER with a useless delay, and GENERATOR."""
    repository = tmp_path / "models"
    shutil.copytree(perf_models, repository)
    slow = edits(repository, model(repository, CLASSIFIER), {"max_queue_delay": SLOW})
    change(repository, CLASSIFIER, slow, "hfx test")
    return repository


def command(repository: Path, name: str, *words: str) -> list[str]:
    return [*HFX, "tune", name, "--repository", str(repository), *LOAD, *words]


def tune(repository: Path, name: str, *words: str) -> Ended:
    return subprocess.run(command(repository, name, *words), capture_output=True, text=True, timeout=PATIENCE)


def signalled(repository: Path, number: signal.Signals, *words: str) -> int:
    """Return the exit code of a search that gets a signal after its first trial."""
    with subprocess.Popen(command(repository, CLASSIFIER, *words), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("published:"):
                process.send_signal(number)
    return process.returncode


def delay(repository: Path) -> int:
    return current(repository, model(repository, CLASSIFIER))["max_queue_delay"]


def snapshot(repository: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(repository.rglob("*")) if path.is_file() and path.name != ".hfx-lock")
    return {str(path.relative_to(repository)): path.read_bytes() for path in paths}


def test_a_gain_is_found_proven_and_written(slowed: Path, tmp_path: Path) -> None:
    output = tmp_path / "tuned.json"
    ended = tune(slowed, CLASSIFIER, *DELAY, "--slo", "latency<1s", "--output", str(output), "--apply")
    assert ended.returncode == 0, ended.stderr
    assert "Proven: " in ended.stdout and "the requests/s with 2 callers" in ended.stdout
    assert f"Written into {CLASSIFIER}" in ended.stdout
    assert delay(slowed) < SLOW
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
def test_nothing_is_written_without_apply(slowed: Path) -> None:
    published = snapshot(slowed)
    found = json.loads(tune(slowed, CLASSIFIER, *DELAY, "--json").stdout)
    assert found["details"]["proven"] is True
    assert snapshot(slowed) == published


@pytest.mark.full
def test_a_killed_tune_leaves_the_model_whole(slowed: Path) -> None:
    before = snapshot(slowed)
    signalled(slowed, signal.SIGKILL, *DELAY)
    assert len(stagings(slowed)) == 1
    ended = tune(slowed, CLASSIFIER, *DELAY)
    assert ended.returncode == 0, ended.stderr
    assert stagings(slowed) == []
    assert snapshot(slowed) == before


@pytest.mark.full
def test_ctrl_c_keeps_the_trials(slowed: Path, tmp_path: Path) -> None:
    output = tmp_path / "partial.json"
    assert signalled(slowed, signal.SIGINT, "--output", str(output)) == 130
    found = read_result(output)
    assert next(run.subject.label for run in found.runs) == "published"
    assert any("Interrupted" in note for note in found.notes)
    assert stagings(slowed) == []


@pytest.mark.full
def test_a_generator_is_tuned_through_its_streams(slowed: Path, tmp_path: Path) -> None:
    output = tmp_path / "tuned.json"
    words = ("--slo", "ttft<5s,tpot<1s", "--set", "max_tokens=8", "--output", str(output))
    ended = tune(slowed, GENERATOR, *words)
    assert ended.returncode == 0, ended.stderr
    found = read_result(output)
    assert all(run.ttft and run.tokens_per_second and run.goodput == 1.0 for run in found.runs)
    assert {name for run in found.runs for name in run.subject.settings} <= {"threads", "slots", "max_queue_size"}


@pytest.mark.full
def test_an_slo_that_no_settings_keep_reports_the_best_found(slowed: Path, tmp_path: Path) -> None:
    output = tmp_path / "none.json"
    ended = tune(slowed, CLASSIFIER, *DELAY, "--slo", "latency<1us", "--apply", "--output", str(output))
    assert ended.returncode == 5
    assert "No settings keep latency<1us" in ended.stderr
    assert delay(slowed) == SLOW
    assert read_result(output).details["proven"] is False


@pytest.mark.full
def test_a_budget_for_less_than_two_trials_is_refused(slowed: Path) -> None:
    ended = tune(slowed, CLASSIFIER, "--budget", "3s")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "budget of 3 s" in ended.stderr
