"""The export: a plan of a checkpoint, and the steps of its kind, which encoder/steps.py and generation/steps.py list.

Each step takes the plan and what has been made so far, and returns what has been made then. Nothing enters the
repository before the last one; a failure or a kill anywhere leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from hfx.exporter.encoder.kinds import ALIASES
from hfx.exporter.encoder.plan import make_encoder_plan
from hfx.exporter.generation.plan import GeneratorPlan, make_generator_plan
from hfx.exporter.generation.tasks import is_generator
from hfx.exporter.options import ExportOptions
from hfx.exporter.plan import Plan
from hfx.exporter.progress import Show, shown
from hfx.exporter.source import Checkpoint
from hfx.exporter.steps import Artefacts, Step
from hfx.manifest import Manifest
from hfx.repository import Staging, check_target, recover

Progress = Callable[[str], AbstractContextManager[Show | None]]


def make_plan(checkpoint: Checkpoint, options: ExportOptions) -> Plan:
    """Decide everything about the export of `checkpoint`; UsageError or CheckpointUnsupported where it can't be."""
    if options.task in ALIASES:
        options = replace(options, task=ALIASES[options.task])
    if is_generator(checkpoint, options.task):
        return make_generator_plan(checkpoint, options)
    return make_encoder_plan(checkpoint, options)


def export(plan: Plan, progress: Progress, steps: Iterable[Step[Any, Any]] | None = None) -> Manifest:
    """Run the steps of the plan's kind; `progress(title)` is entered around each, and yields what shows how far
    it is. Returns what was published.
    """
    recover(plan.repository)
    check_target(plan.repository, plan.name, plan.force)
    begin, _ = _kind(plan)
    with Staging(plan.repository, plan.name) as staging:
        artefacts = begin(staging)
        for step in steps_of(plan) if steps is None else steps:
            with progress(step.title) as show, shown(show):
                artefacts = step.run(plan, artefacts)
    assert artefacts.manifest is not None
    return artefacts.manifest


def steps_of(plan: Plan) -> list[Step[Any, Any]]:
    """The steps of the plan's kind that there is something to do for."""
    return [step for step in _kind(plan)[1] if plan.verify_data or not step.labelled]


def without_gate(plan: Plan) -> list[Step[Any, Any]]:
    """The steps of the plan's kind but for those of the gate, to measure a model whose answers don't matter."""
    return [step for step in _kind(plan)[1] if not step.gate]


def _kind(plan: Plan) -> tuple[Callable[[Staging], Artefacts], tuple[Step[Any, Any], ...]]:
    """What the first step of the plan's kind begins with, and all steps."""
    from hfx.exporter.encoder import steps as encoder
    from hfx.exporter.generation import steps as generator

    if isinstance(plan, GeneratorPlan):
        return generator.GeneratorArtefacts, generator.STEPS
    return encoder.EncoderArtefacts, encoder.STEPS
