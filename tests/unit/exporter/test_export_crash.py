"""A killed export leaves the repository as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.manifest import hash_folder
from hfx.repository import recover
from hfx.repository.publish import stagings
from tests.rigs.checkpoints import generator_checkpoints, tiny_checkpoints
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.killing import Killer
from tests.rigs.machine.tiers import full

pytestmark = pytest.mark.slow

MODEL = "sentiment-fp32"  # as tests/conftest.py has it

# Imports come before the forks: they take longer than an export of a tiny model.
EXPORT = """
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from hfx.exporter.options import ExportOptions
from hfx.exporter import pipeline
from hfx.exporter.encoder import one_hop
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import open_checkpoint
import hfx.exporter.encoder.steps, hfx.exporter.generation.steps
import transformers.models.bert.modeling_bert, transformers.models.gpt2.modeling_gpt2

one_hop.GENERATED = 200  # as tests/conftest.py has it

def kill(plan, made):
    os.kill(os.getpid(), signal.SIGKILL)

def work(arm, checkpoint, repository, name, title):
    options = ExportOptions(name=name, precision="fp32", device="cpu", repository=Path(repository), force=True,
                            cpu_runtime="onnxruntime")
    plan = make_plan(open_checkpoint(checkpoint), options)
    every = pipeline.without_gate(plan)  # which writes nothing
    stop = [step.title for step in every].index(title)
    steps = [*every[:stop], replace(every[stop], run=kill)]
    pipeline.export(plan, lambda title: nullcontext(), steps)
"""


@pytest.fixture(scope="module")
def exporter() -> Iterator[Killer]:
    """A process that exports in forks, each of which is killed at a step."""
    with Killer(EXPORT) as running:
        yield running


def contents(repository: Path) -> dict[str, object]:
    """Return every file of the repository's models, hashed."""
    return {each.name: hash_folder(each, repository) for each in repository.iterdir() if not each.name.startswith(".")}


# Before anything is staged, in the middle, and right before the renames, whose own kills test_repository_publish has.
@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("encoder", "Loading the checkpoint"),
        full("encoder", "Writing model folders"),
        ("encoder", "Publishing"),
        full("generator", "Loading the tokenizer"),
        ("generator", "Writing model folders"),
        full("generator", "Publishing"),
    ],
)
def test_a_kill_at_any_stage_leaves_the_repository_unchanged(
    kind: str, title: str, exporter: Killer, tmp_path: Path
) -> None:
    export_zoo("sentiment-distilbert", tmp_path / "repository", MODEL, "fp32", "onnxruntime")
    checkpoint = tmp_path / "checkpoint"
    if kind == "generator":
        generator_checkpoints.save(checkpoint, "gpt2")
    else:
        tiny_checkpoints.save(checkpoint, tiny_checkpoints.bert())
    before = contents(tmp_path / "repository")
    assert exporter.run(0, str(checkpoint), str(tmp_path / "repository"), MODEL, title) is None
    assert contents(tmp_path / "repository") == before
    recover(tmp_path / "repository")
    assert contents(tmp_path / "repository") == before
    assert not stagings(tmp_path / "repository")
