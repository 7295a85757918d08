"""The engine's short version: one request at a time, without batch, cache and threads. Read this first.

A search chooses tokens from scores (search.py). `drive` runs a search to its end: it computes the logits after each row
anew from all tokens of the row, and offers them to the search. The rest of this package makes that fast, and tests
prove that its answers stay the same: a batch (scheduler.py, plan.py, runners.py), keys and values of tokens that were
run before (partition.py, kv_cache.py), and best scores that ONNX Runtime finds (picker.py, scores.py).

    python -m hfx.python_backends.engine.reference models/NAME_stream/1 "Once upon a time"

This answers a text with both, greedily, with beams and with samples, and compares the tokens. This module is not copied
into published models.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ..checks import Ids
from .engine import Engine
from .jobs import new_searches
from .matcher import Floats
from .plan import Span
from .request import Event, Request, Settings, Step, Top
from .runners import WIDTH, DecoderRunner, Runner
from .runtimes import open_runner
from .search import WHOLE_ROW, Search, log_probs_at
from .sessions import SessionSettings
from .spec import read_spec

# The logits [rows, vocabulary] after each of some rows of tokens.
Model = Callable[[list[list[int]]], Floats]
Softmax = Callable[[Floats], Floats]
# How `main` decodes, whatever the model's own settings are.
DECODING: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "samples": {"do_sample": True, "num_return_sequences": 2, "seed": 1},
}
TOKENS = 32  # of an answer


def answer(request: Request, model: Model) -> tuple[Event, ...]:
    """Return the last event of each sequence of `request`."""
    return tuple(completion for search in new_searches(request) for completion in drive(search, model)[1])


def drive(
    search: Search, model: Model, step_of: Callable[[Search, Floats], Step] | None = None
) -> tuple[list[Event], tuple[Event, ...]]:
    """Run `search` to its end on the logits of `model`, and return its events and its completions.

    `step_of` may take the place of `one_step`.
    """
    rows = [list(search.prompt) for _ in range(search.rows)]
    emitted: list[Event] = []
    while True:
        step = (step_of or one_step)(search, model(rows))
        emitted += step.emitted
        if step.completions:
            return emitted, step.completions
        rows = [[*rows[parent], token] for parent, token in zip(step.parents, search.next_inputs(), strict=True)]


def log_softmax(logits: Floats) -> Floats:
    """Return the log-softmax of whole rows, as numpy computes it."""
    return log_probs_at(logits, None)


def one_step(search: Search, logits: Floats, softmax: Softmax = log_softmax) -> Step:
    """Return what `search` chooses from `logits` [rows, vocabulary]."""
    if search.candidates == 0:
        values, ids = None, logits.argmax(axis=1)[:, None]
        ids = ids if search.forced is None else np.full_like(ids, search.forced)
    else:
        scores = softmax(logits) if search.uses_log_probs else logits.copy()
        count = search.candidates
        search.edit(scores)
        values, ids = (scores, None) if count == WHOLE_ROW else best(scores, count)
    if not search.wants_log_probs:
        return search.choose(values, ids)
    return search.choose(values, ids, log_probs_at(logits, ids), most_probable(logits, search.top_count))


def most_probable(logits: Floats, count: int) -> Top:
    """Return the `count` most probable tokens of the first row."""
    values, ids = best(log_softmax(logits[:1]), count)
    return tuple(zip(ids[0].tolist(), values[0].tolist(), strict=True))


def best(scores: Floats, count: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the `count` best of each row, best first; among equal scores the lowest id comes first."""
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(scores, ids, axis=1), ids


def model_of(runner: Runner, prompt: Ids) -> Model:
    """Return the model of a runner, which reads all tokens of each row anew. With an encoder, it reads `prompt`."""

    def logits(row: list[int]) -> Floats:
        if isinstance(runner, DecoderRunner):
            outputs = runner.run([Span(tuple(row), rows=(0,))], logits=True)
        else:
            runner.encode([prompt], [[(WIDTH, 0)]])
            for token in row:
                runner.partitions[WIDTH].set_next_tokens([(0, token)])
                outputs = runner.partitions[WIDTH].step(1, logits=True)
        copy: Floats = outputs.host_logits[0].copy()
        return copy

    return lambda rows: np.stack([logits(row) for row in rows])


def both_answers(folder: Path, requests: Sequence[Request]) -> list[tuple[list[Ids], ...]]:
    """Return the ids of the reference's and of the engine's answers to `requests`. The engine gets all of them at once.

    `folder` has an engine.json. Raises subclasses of ModelRefused.
    """
    runner = open_runner(read_spec(folder), 1, SessionSettings())
    runner.open_partition(WIDTH)
    expected = [answer(request, model_of(runner, request.prompt)) for request in requests]
    runner.close()
    with Engine.open(folder) as engine:
        answers = [job.result() for job in [engine.submit(request) for request in requests]]
    return [tuple([event.ids for event in events] for events in pair) for pair in zip(expected, answers, strict=True)]


def main(folder: str, text: str) -> int:
    """Answer `text` with the published generator in `folder`, and print the texts. Return 1 if any tokens differ."""
    tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    model = json.loads(Path(folder, "generation.json").read_text())
    start, eos_ids = (tuple(model[name]) for name in ("decoder_start_token_ids", "eos_token_ids"))
    prompt = tuple(tokenizer.encode(text).ids)
    settings = Settings(max_tokens=TOKENS, decoder_prompt=start, eos_ids=eos_ids)
    requests = [Request(prompt, replace(settings, **own)) for own in DECODING.values()]
    pairs = both_answers(Path(folder, "cpu"), requests)
    for name, (expected, answers) in zip(DECODING, pairs, strict=True):
        print(name, "equal" if answers == expected else f"DIFFERENT: {expected} {answers}", sep=": ")
        print(*(f"    {tokenizer.decode(ids)!r}" for ids in answers), sep="\n")
    return int(any(answers != expected for expected, answers in pairs))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
