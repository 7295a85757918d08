"""What the engine must answer on the toy models, worked out one request at a time without model, cache and batch.

The searches are the engine's own (they are held to transformers elsewhere); everything else is a loop over histories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hfx.python_backends.engine.jobs import new_searches
from hfx.python_backends.engine.request import Completion, Request
from hfx.python_backends.engine.search import WHOLE_ROW, Search, log_probs_at

from . import engine_toys as toys

# The logits after a history and, for an encoder-decoder, a source.
Model = Callable[[Sequence[int], Sequence[int]], np.ndarray]


def expected(request: Request, model: Model = toys.logits) -> tuple[Completion, ...]:
    """The completions of `request`."""
    source = request.prompt if request.settings.decoder_prompt else ()
    return tuple(completion for search in new_searches(request) for completion in _decode(search, source, model))


def _decode(search: Search, source: Sequence[int], model: Model) -> tuple[Completion, ...]:
    histories = [list(search.prompt) for _ in range(search.rows)]
    while True:
        logits = np.stack([model(history, source) for history in histories])
        step = _choose(search, logits)
        if step.completions:
            return step.completions
        histories = [[*histories[parent], token] for parent, token in zip(step.parents, search.feed(), strict=True)]


def _choose(search: Search, logits: np.ndarray):
    if search.candidates == 0:
        ids = logits.argmax(axis=1)[:, None]
        ids = ids if search.forced is None else np.full_like(ids, search.forced)
        return search.choose(None, ids, log_probs_at(logits, ids) if search.wants_log_probs else None)
    scores = log_probs_at(logits, None) if search.uses_log_probs else logits.copy()
    search.edit(scores)
    if search.candidates == WHOLE_ROW:
        return search.choose(scores, None, log_probs_at(logits, None) if search.wants_log_probs else None)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, : search.candidates]
    values = np.take_along_axis(scores, ids, axis=1)
    return search.choose(values, ids, log_probs_at(logits, ids) if search.wants_log_probs else None)
