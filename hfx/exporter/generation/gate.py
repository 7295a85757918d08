"""The gate: an engine folder, run by the code that will serve it, against the checkpoint's continuations.

One opening serves all of it: the logits are those of the runner that the engine then has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hfx import names
from hfx.exporter.generation.forced import is_tie, measure_forced, open_rows
from hfx.exporter.generation.forced_long import measure_long
from hfx.exporter.generation.limits import LIMITS, Figures, Whole
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.prompts import Effort, Ids, spread_indices
from hfx.exporter.generation.reference import Reference
from hfx.exporter.verify import Recorded
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.engine.runner import Runner, SessionSettings
from hfx.python_backends.engine.spec import EngineSpec, read_spec
from hfx.python_backends.generation.configuration import Configuration
from hfx.python_backends.generation.settings import resolve_config

RECORDED_TEXTS = 64
DEFAULT_BEAMS = 4  # where a checkpoint does not search with beams by itself
SLOTS = 32  # whatever the model is served with: requests must run in batches
BATCHES = (1, 2, 5)  # how many requests run at a time when some are run again


@dataclass(frozen=True)
class Work:
    """What is done with the prompts, and the engine's settings for it."""

    effort: Effort
    greedy: Settings
    beams: Settings


def make_work(plan: GeneratorPlan, version: Path, effort: Effort) -> Work:
    """The work for the staged model in `version`: its settings come from the very files that are published."""
    configuration = Configuration.read(version)
    greedy = plain_fields(min(effort.tokens, configuration.most_tokens))
    tokens = min(effort.beam_tokens, configuration.most_tokens)
    beams = int(plan.settings.defaults.get("num_beams", 1))
    searched = {
        names.NUM_BEAMS: beams if beams > 1 else DEFAULT_BEAMS,
        names.DO_SAMPLE: False,
        names.MAX_TOKENS: tokens,
        names.MIN_TOKENS: min(int(plan.settings.defaults.get("min_tokens", 0)), tokens // 2),
    }
    return Work(
        effort, resolve_config(greedy, configuration).settings, resolve_config(searched, configuration).settings
    )


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
    spec = read_spec(folder)
    with ExitStack() as stack:
        runner = open_rows(spec, SLOTS, session)
        stack.callback(runner.close)
        forced = measure_forced(runner, reference, plan.settings.decoder_start_token_ids)
        long = measure_long(runner, spec, reference)
        stack.pop_all()  # the engine closes it: sessions of BART-large take ONNX Runtime 6 s to open
    # fp32 graphs have a noise of their own, which their logits show; what is further off than that is no noise.
    trusted = (LIMITS["fp32"].delta or 0.0) * reference.largest
    margin = 2 * max(reference.noise, forced.delta if forced.delta <= trusted else 0.0)
    alone = work.effort.alone
    with open_engine(runner, spec, reference, session) as engine:
        greedy = measure_greedy(engine, reference, work.greedy, alone, margin)
        beams = measure_beams(engine, reference, work.beams, alone, margin) if reference.beams else None
    return Figures(forced, greedy, beams, reference.num_beams, reference.noise, long)


def recorded(reference: Reference, work: Work, text_of: Callable[[Ids], str]) -> Recorded:
    """The prompts as requests for their greedy continuations, and the checkpoint's texts, for `hfx verify`."""
    fields = plain_fields(work.greedy.max_tokens)
    requests = [{names.TEXT_INPUT: prompt.text, **fields} for prompt in reference.prompts[:RECORDED_TEXTS]]
    answers = [{names.TEXT_OUTPUT: text_of(ids)} for ids in reference.greedy[:RECORDED_TEXTS]]
    return Recorded(tuple(requests), tuple(answers))


def open_engine(runner: Runner, spec: EngineSpec, reference: Reference, session: SessionSettings) -> Engine:
    """The engine of a runner with SLOTS rows, with room for all of the reference's prompts."""
    return Engine.of(runner, spec, session, slots=SLOTS, max_queue=len(reference.prompts))


def measure_greedy(engine: Engine, reference: Reference, settings: Settings, alone: int, margin: float) -> Whole:
    """Every prompt, greedily. Texts may part at a tie: two tokens whose logits in torch are `margin` apart at most."""
    completions, variant, again = _run(engine, [p.ids for p in reference.prompts], settings, alone)
    same = ties = 0
    for index, (expected, completion) in enumerate(zip(reference.greedy, completions, strict=True)):
        same += completion.ids == expected
        place = _parting(expected, completion.ids)
        if place is not None:
            ties += is_tie(reference.positions[index], place, expected[place], completion.ids[place], margin)
    return Whole(len(completions), same / len(completions), ties / len(completions), again, variant)


def measure_beams(engine: Engine, reference: Reference, settings: Settings, alone: int, margin: float) -> Whole:
    """The prompts that torch searched with beams. Other tokens of an equal score are a tie.

    A score is a sum of log-probabilities, each as uncertain as a logit, over length ** length_penalty.
    """
    prompts = [prompt.ids for prompt in reference.prompts[: len(reference.beams)]]
    completions, variant, again = _run(engine, prompts, settings, alone)
    same = ties = 0
    for expected, score, completion in zip(reference.beams, reference.beam_scores, completions, strict=True):
        equal = completion.ids == expected
        same += equal
        uncertain = margin * (len(expected) + 1) ** (1 - settings.length_penalty)
        ties += not equal and completion.score is not None and abs(completion.score - score) <= uncertain
    return Whole(len(completions), same / len(completions), ties / len(completions), again, variant)


def _run(engine: Engine, prompts: Sequence[Ids], settings: Settings, alone: int) -> tuple[list[Event], int, int]:
    """The completion of each prompt, all submitted at once; how many of some run again had others; how many ran.

    Those are run alone and in smaller BATCHES, and must have the same ids and log-probabilities, to the bit.
    """
    requests = [Request(ids, replace(settings, log_probs=True)) for ids in prompts]
    together = _completions(engine, requests)
    chosen = spread_indices(len(prompts), alone)
    differ = set[int]()
    for size in BATCHES:
        for group in (chosen[at : at + size] for at in range(0, len(chosen), size)):
            again = _completions(engine, [requests[i] for i in group])
            differ |= {i for i, found in zip(group, again, strict=True) if found != together[i]}
    return together, len(differ), len(chosen)


def _completions(engine: Engine, requests: Sequence[Request]) -> list[Event]:
    """The best completion of each request; all are submitted at once."""
    return [handle.result()[0] for handle in [engine.submit(request) for request in requests]]


def _parting(expected: Ids, actual: Ids) -> int | None:
    """The first place where both have a token, and another one."""
    return next((i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b), None)
