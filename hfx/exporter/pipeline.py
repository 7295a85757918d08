"""The export: make a plan for a checkpoint, and run the steps of its kind.

encoder/steps.py and generation/steps.py list the steps. Each step takes the plan and the artefacts made so far, and
returns the artefacts with its own results. Nothing enters the repository before the last step; if the export fails or
is killed earlier, the repository stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from time import perf_counter
from typing import Any

from hfx.exporter.decisions import decision_parameters
from hfx.exporter.encoder.checkpoint.module_list import STATIC
from hfx.exporter.encoder.kinds import ALIASES, EncoderKind
from hfx.exporter.encoder.plan import make_encoder_plan
from hfx.exporter.generation.plan import GeneratorPlan, make_generator_plan
from hfx.exporter.generation.tasks import is_generator
from hfx.exporter.load import require_memory, superfluous_tensors
from hfx.exporter.options import ExportOptions
from hfx.exporter.plan import Plan
from hfx.exporter.progress import Show, shown
from hfx.exporter.source import Checkpoint
from hfx.exporter.steps import Artefacts, Step
from hfx.exporter.tensors import file_names, first_names
from hfx.manifest import Manifest
from hfx.names import Task
from hfx.repository import Staging, check_target, recover

Progress = Callable[[str], AbstractContextManager[Show | None]]


def make_plan(checkpoint: Checkpoint, options: ExportOptions) -> Plan:
    """Decide everything about the export of `checkpoint`.

    Raises UsageError, CheckpointUnsupported or CheckpointCorrupt if the export is impossible.
    """
    if options.task in ALIASES:
        options = replace(options, task=ALIASES[options.task])
    if options.answer and options.task is None:
        options = replace(options, task=Task.TEXT_CLASSIFICATION)
    generates = is_generator(checkpoint, options.task)
    plan = (make_generator_plan if generates else make_encoder_plan)(checkpoint, options)
    return replace(plan, notes=(*plan.notes, *_left_out(plan)), parameters=decision_parameters(plan, options))


def _left_out(plan: Plan) -> Iterator[str]:
    """Yield a line about stored tensors that the model does not have. Raises CheckpointCorrupt for missing tensors.

    Nothing is compared if the weights are not here, as in a `--dry-run` of a model on the hub.
    """
    checkpoint, kind = plan.checkpoint.home, plan.kind
    if not checkpoint.weights or checkpoint.model_type == STATIC:
        return
    encoder = kind if isinstance(kind, EncoderKind) else None
    headless, read, prefix = (encoder.headless, encoder.pooler_tensors, encoder.prefix) if encoder else (False, (), "")
    names = superfluous_tensors(checkpoint, kind.auto_class, headless, prefix)
    if names := [name for name in names if not name.startswith(read)]:
        yield f"{file_names(checkpoint)} has tensors that the model lacks; they are left out: {first_names(names)}."


def export(plan: Plan, progress: Progress, steps: Iterable[Step[Any, Any]] | None = None) -> Manifest:
    """Run the steps of the plan's kind, or `steps`, and return the manifest of the published model.

    Each step runs in the context `progress(title)`, which yields a function that shows the step's progress, or None.
    Raises MemoryShort before the first step if the checkpoint can't be held in memory.
    """
    recover(plan.repository)
    check_target(plan.repository, plan.name, plan.force)
    require_memory(plan.checkpoint)
    begin, _ = _kind(plan)
    with Staging(plan.repository, plan.name) as staging:
        artefacts, seconds = begin(staging), dict[str, float]()
        for step in steps_of(plan) if steps is None else steps:
            began = perf_counter()
            with progress(step.title) as show, shown(show):
                artefacts = step.run(plan, artefacts)
            seconds[step.title] = round(perf_counter() - began, 3)
            artefacts = replace(artefacts, choices={**artefacts.choices, "seconds": dict(seconds)})
    assert artefacts.manifest is not None
    return artefacts.manifest


def steps_of(plan: Plan) -> list[Step[Any, Any]]:
    """Return the steps of the plan's kind that have something to do."""
    return [step for step in _kind(plan)[1] if plan.verify_data or not step.labelled]


def without_gate(plan: Plan) -> list[Step[Any, Any]]:
    """Return the steps of the plan's kind without the gate's, to measure a model whose answers don't matter."""
    return [step for step in _kind(plan)[1] if not step.gate]


def _kind(plan: Plan) -> tuple[Callable[[Staging], Artefacts], tuple[Step[Any, Any], ...]]:
    """Return the class of the artefacts of the plan's kind, and its steps."""
    from hfx.exporter.encoder import nets
    from hfx.exporter.encoder import steps as encoder
    from hfx.exporter.generation import steps as generator

    if isinstance(plan, GeneratorPlan):
        return generator.GeneratorArtefacts, generator.STEPS
    return nets.EncoderArtefacts, encoder.STEPS
