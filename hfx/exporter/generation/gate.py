"""The gate: an engine folder, run by the code that will serve it, against the checkpoint's continuations.

Owns what is run on a folder and in which order; each part opens the model anew, so that only one is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx import names
from hfx.exporter.generation.effort import Effort
from hfx.exporter.generation.figures import Figures
from hfx.exporter.generation.forced import measure_forced
from hfx.exporter.generation.limits import LIMITS
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.prompts import Ids
from hfx.exporter.generation.reference import BeamWork, Reference
from hfx.exporter.generation.whole import measure_beams, measure_greedy, open_engine
from hfx.exporter.parity.recorded import Recorded
from hfx.local import Answer
from hfx.python_backends.engine.request import Settings
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.generation.configuration import Configuration
from hfx.python_backends.generation.settings import choose

RECORDED_TEXTS = 64
DEFAULT_BEAMS = 4  # where a checkpoint does not search with beams by itself


@dataclass(frozen=True)
class Work:
    """What is done with the prompts: the engine's settings, and the same for torch where it needs to be told."""

    effort: Effort
    tokens: int
    greedy: Settings
    beams: Settings
    beam_work: BeamWork


def make_work(plan: GeneratorPlan, version: Path, effort: Effort) -> Work:
    """The work for the staged model in `version`: its settings come from the very files that are published."""
    configuration = Configuration.read(version)
    tokens = min(effort.tokens, configuration.most_tokens)
    beam_tokens = min(effort.beam_tokens, configuration.most_tokens)
    defaults = plan.settings.defaults
    beams = max(int(defaults.get("num_beams", 1)), 1)
    work = BeamWork(
        texts=effort.beam_texts,
        num_beams=beams if beams > 1 else DEFAULT_BEAMS,
        tokens=beam_tokens,
        min_tokens=min(int(defaults.get("min_tokens", 0)), beam_tokens // 2),
    )
    searched = {"num_beams": work.num_beams, "do_sample": False, "max_tokens": work.tokens}
    beam_settings = choose({**searched, "min_tokens": work.min_tokens}, configuration).settings
    return Work(effort, tokens, choose(plain_fields(tokens), configuration).settings, beam_settings, work)


def plain_fields(tokens: int) -> dict[str, Any]:
    """The public fields of a greedy run that needs nothing but the logits; for torch they are reference.PLAIN."""
    return {
        names.MAX_TOKENS: tokens,
        names.MIN_TOKENS: 0,
        names.NUM_BEAMS: 1,
        names.DO_SAMPLE: False,
        names.NO_REPEAT_NGRAM_SIZE: 0,
        names.REPETITION_PENALTY: 1.0,
    }


def measure(folder: Path, plan: GeneratorPlan, reference: Reference, work: Work, session: SessionSettings) -> Figures:
    """Run the engine folder on the reference's prompts. Raises the engine's ModelRefused where it can't run here."""
    forced = measure_forced(folder, reference, plan.settings.decoder_start_ids, session)
    # fp32 graphs have a noise of their own, which their logits show; what is further off than that is no noise.
    trusted = (LIMITS["fp32"].delta or 0.0) * reference.largest
    margin = 2 * max(reference.noise, forced.delta if forced.delta <= trusted else 0.0)
    alone = work.effort.alone
    with open_engine(folder, reference, session) as engine:
        greedy = measure_greedy(engine, reference, work.greedy, alone, margin)
        beams = measure_beams(engine, reference, work.beams, alone, margin) if reference.beams else None
    return Figures(forced, greedy, beams, reference.num_beams, reference.noise)


def recorded(reference: Reference, work: Work, text_of: Callable[[Ids], str]) -> Recorded:
    """The prompts as requests for their greedy continuations, and the checkpoint's texts, for `hfx verify`."""
    fields = plain_fields(work.tokens)
    requests = [{names.TEXT_INPUT: prompt.text, **fields} for prompt in reference.prompts[:RECORDED_TEXTS]]
    answers = [{names.TEXT_OUTPUT: text_of(ids)} for ids in reference.greedy[:RECORDED_TEXTS]]
    return Recorded(tuple(requests), tuple(answers))


def same_texts(answers: Sequence[Answer], recorded: Recorded) -> dict[str, Any]:
    """How many requests were answered, and the share of texts that are the recorded ones."""
    pairs = zip(answers, recorded.answers, strict=True)
    same = sum(answer[names.TEXT_OUTPUT] == known[names.TEXT_OUTPUT] for answer, known in pairs)
    return {"requests": len(recorded.answers), "same": same / len(recorded.answers)}
