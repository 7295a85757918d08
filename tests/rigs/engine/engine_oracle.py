"""Searches that run to their end one request at a time, without cache and batch.

They take any logits, or those of the toy models. The search classes are the engine's own (other tests compare them with
transformers); everything else is a loop over histories.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hfx.python_backends.engine.jobs import new_searches
from hfx.python_backends.engine.request import Event, Request, Top
from hfx.python_backends.engine.search import WHOLE_ROW, Search, log_probs_at
from tests.rigs.engine import engine_toys as toys


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-softmax of whole rows, as numpy computes it."""
    return log_probs_at(logits, None)


def expected(request: Request) -> tuple[Event, ...]:
    """Return the engine's expected answer to `request` on a toy model."""
    source = request.prompt if request.settings.decoder_prompt else ()

    def logits(rows: list[list[int]]) -> np.ndarray:
        return np.stack([toys.logits(row, source) for row in rows])

    return tuple(completion for search in new_searches(request) for completion in drive(search, logits)[1])


def drive(
    search: Search,
    logits: Callable[[list[list[int]]], np.ndarray],
    softmax: Any = log_softmax,
    step_of: Callable[[Search, np.ndarray, Any], Any] | None = None,
) -> tuple[list[Event], tuple[Event, ...]]:
    """Run `search` to its end on the `logits` after its rows; return its events and its completions.

    `step_of` may take the place of `one_step`.
    """
    rows = [list(search.prompt) for _ in range(search.rows)]
    emitted: list[Event] = []
    while True:
        step = (step_of or one_step)(search, logits(rows), softmax)
        emitted += step.emitted
        if step.completions:
            return emitted, step.completions
        rows = [[*rows[parent], token] for parent, token in zip(step.parents, search.next_inputs(), strict=True)]


def one_step(search: Search, logits: np.ndarray, softmax: Any = log_softmax) -> Any:
    """Offer `logits` [rows, vocabulary] to `search`."""
    wanted = search.candidates
    if wanted == 0:
        values, ids = None, logits.argmax(axis=1)[:, None]
        ids = ids if search.forced is None else np.full_like(ids, search.forced)
    else:
        scores = softmax(logits) if search.uses_log_probs else logits.copy()
        search.edit(scores)
        values, ids = (scores, None) if wanted == WHOLE_ROW else best(scores, wanted)
    if not search.wants_log_probs:
        return search.choose(values, ids)
    return search.choose(values, ids, log_probs_at(logits, ids), most_probable(logits, search.top_count))


def most_probable(logits: np.ndarray, count: int) -> Top:
    """Return the `count` most probable tokens of the first row."""
    values, ids = best(log_softmax(logits[:1]), count)
    return tuple(zip(ids[0].tolist(), values[0].tolist(), strict=True))


def best(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `count` best of each row, best first; among equal scores the lowest id comes first."""
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(scores, ids, axis=1), ids
