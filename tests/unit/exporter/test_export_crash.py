"""A killed export leaves the repository as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hfx.manifest import hash_folder
from hfx.repository import recover
from hfx.repository.publish import stagings
from tests.rigs.checkpoints import generator_checkpoints, outliers, tiny_checkpoints
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.faults import Killer
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
from hfx.exporter import runtime
from hfx.exporter.encoder import mixed as encoder
from hfx.exporter.generation import gate, mixed as generator, prompts
import hfx.exporter.encoder.steps, hfx.exporter.generation.steps
import transformers.models.bert.modeling_bert, transformers.models.distilbert.modeling_distilbert
import transformers.models.gpt2.modeling_gpt2

one_hop.GENERATED, runtime.SETTLED_SECONDS = 200, 0.0  # as tests/conftest.py has it
prompts.EFFORTS = prompts.EFFORTS[2:]

def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def work(arm, checkpoint, repository, name, precision, place):
    options = ExportOptions(name=name, precision=precision, device="cpu", repository=Path(repository), force=True,
                            cpu_runtime="onnxruntime")
    plan = make_plan(open_checkpoint(checkpoint), options)
    if precision == "int8":
        owner, _, function = place.partition(" ")
        setattr({"encoder": encoder, "generator": generator, "gate": gate.Gate}[owner], function, kill)
        steps = None
    else:
        every = pipeline.without_gate(plan)  # which writes nothing
        stop = [step.title for step in every].index(place)
        steps = [*every[:stop], replace(every[stop], run=kill)]
    pipeline.export(plan, lambda title: nullcontext(), steps)
"""


@pytest.fixture(scope="module")
def exporter() -> Iterator[Killer]:
    """A process that exports in forks, each of which is killed at a step or in a search."""
    with Killer(EXPORT) as running:
        yield running


def contents(repository: Path) -> dict[str, object]:
    """Return every file of the repository's models, hashed."""
    return {each.name: hash_folder(each, repository) for each in repository.iterdir() if not each.name.startswith(".")}


CHECKPOINTS: dict[str, Callable[[Path], object]] = {
    "encoder": lambda folder: tiny_checkpoints.save(folder, tiny_checkpoints.bert()),
    "generator": lambda folder: generator_checkpoints.save(folder, "gpt2"),
    "encoder with a bad product": lambda folder: outliers.one_bad_product(folder, 1),
    "generator with a bad linear": lambda folder: outliers.one_bad_linear(folder, 1),
}


# Before anything is staged, in the middle, and right before the renames, whose own kills test_repository_publish has.
# And in the search for what int8 can't hold: before it, at a mixed file, and when it ends.
@pytest.mark.parametrize(
    ("checkpoint", "precision", "place"),
    [
        ("encoder", "fp32", "Loading the checkpoint"),
        full("encoder", "fp32", "Writing model folders"),
        ("encoder", "fp32", "Publishing"),
        full("generator", "fp32", "Loading the tokenizer"),
        ("generator", "fp32", "Writing model folders"),
        full("generator", "fp32", "Publishing"),
        full("encoder with a bad product", "int8", "encoder rank"),
        ("encoder with a bad product", "int8", "encoder _gated"),
        full("encoder with a bad product", "int8", "encoder discard"),
        full("generator with a bad linear", "int8", "generator rank_linears"),
        full("generator with a bad linear", "int8", "gate attempt"),
        ("generator with a bad linear", "int8", "generator _speedup"),
    ],
)
def test_a_kill_at_any_stage_leaves_the_repository_unchanged(
    checkpoint: str, precision: str, place: str, exporter: Killer, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    export_zoo("sentiment-distilbert", repository, MODEL, "fp32", "onnxruntime")
    CHECKPOINTS[checkpoint](tmp_path / "checkpoint")
    before = contents(repository)
    assert exporter.kill(0, str(tmp_path / "checkpoint"), str(repository), MODEL, precision, place) is None
    assert contents(repository) == before
    recover(repository)
    assert contents(repository) == before
    assert not stagings(repository)
