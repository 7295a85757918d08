"""Whole continuations through the engine: against the checkpoint's tokens, and the same in any company.

Owns the comparison of texts, in tokens; how a request is decoded is its settings'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hfx.exporter.generation.figures import Whole
from hfx.exporter.generation.forced import is_tie
from hfx.exporter.generation.prompts import Ids
from hfx.exporter.generation.reference import Reference
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Completion, Request, Settings
from hfx.python_backends.engine.sessions import SessionSettings

SLOTS = 32  # whatever the model is served with: requests must have company
COMPANIES = (1, 2, 5)  # how many requests run at a time when some are run again


def open_engine(folder: Path, reference: Reference, session: SessionSettings) -> Engine:
    """The engine in `folder`, with room for all of the reference's prompts. Raises ModelRefused."""
    return Engine.open(
        folder,
        slots=SLOTS,
        max_queue=len(reference.prompts),
        threads=session.threads,
        provider=session.provider,
        runtime=session.runtime,
    )


def measure_greedy(engine: Engine, reference: Reference, settings: Settings, alone: int, margin: float) -> Whole:
    """Every prompt, greedily. Texts may part at a tie: two tokens whose logits in torch are `margin` apart at most."""
    found, company, again = _run(engine, [p.ids for p in reference.prompts], settings, alone)
    same = ties = 0
    for index, (expected, completion) in enumerate(zip(reference.greedy, found, strict=True)):
        same += completion.ids == expected
        place = _parting(expected, completion.ids)
        if place is not None:
            theirs, ours = expected[place], completion.ids[place]
            ties += is_tie(reference.positions[index], place, theirs, ours, margin)
    return Whole(len(found), same / len(found), ties / len(found), again, company)


def measure_beams(engine: Engine, reference: Reference, settings: Settings, alone: int, margin: float) -> Whole:
    """The prompts that torch searched with beams. Other tokens of an equal score are a tie.

    A score is a sum of log-probabilities, each as uncertain as a logit, over length ** length_penalty.
    """
    prompts = [prompt.ids for prompt in reference.prompts[: len(reference.beams)]]
    found, company, again = _run(engine, prompts, settings, alone)
    same = ties = 0
    for expected, score, completion in zip(reference.beams, reference.beam_scores, found, strict=True):
        equal = completion.ids == expected
        same += equal
        uncertain = margin * (len(expected) + 1) ** (1 - settings.length_penalty)
        ties += not equal and completion.score is not None and abs(completion.score - score) <= uncertain
    return Whole(len(found), same / len(found), ties / len(found), again, company)


def _run(engine: Engine, prompts: Sequence[Ids], settings: Settings, alone: int) -> tuple[list[Completion], int, int]:
    """The completion of each prompt, all submitted at once; how many of some run again had others; how many ran.

    Those are run alone and in smaller COMPANIES, and must have the same ids and log-probabilities, to the bit.
    """
    requests = [Request(ids, replace(settings, log_probs=True)) for ids in prompts]
    together = _completions(engine, requests)
    chosen = sorted(set(np.linspace(0, len(prompts) - 1, min(alone, len(prompts))).astype(int).tolist()))
    differ = set[int]()
    for size in COMPANIES:
        for group in (chosen[at : at + size] for at in range(0, len(chosen), size)):
            again = _completions(engine, [requests[i] for i in group])
            differ |= {i for i, found in zip(group, again, strict=True) if found != together[i]}
    return together, len(differ), len(chosen)


def _completions(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """The best completion of each request; all are submitted at once."""
    return [handle.result()[0] for handle in [engine.submit(request) for request in requests]]


def _parting(expected: Ids, found: Ids) -> int | None:
    """The first place where both have a token, and another one."""
    return next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
