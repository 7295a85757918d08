"""The engine's runner along given continuations: its logits at every position, as if each token before were right.

Owns the batches; the runner is the one that serves. It must not know what the logits are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.generation.prompts import Ids
from hfx.python_backends.engine.runner import Outputs, PromptRunner, Runner, SourceRunner
from hfx.python_backends.engine.runners import open_runner
from hfx.python_backends.engine.scheduler import Limits
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import EngineSpec, read_spec

ROWS = 16
WIDTH = 1  # one row a request
Logits = NDArray[np.float32]


def forced_logits(
    folder: Path, prompts: Sequence[Ids], continuations: Sequence[Ids], start: Ids, settings: SessionSettings
) -> Iterator[tuple[int, int, Logits]]:
    """(prompt, position, logits [vocabulary]) of each position of each continuation; a row is valid until the next.

    `start` is what an encoder-decoder's decoder begins with. Raises ModelRefused where the model can't run here.
    """
    spec = read_spec(folder)
    runner = open_runner(spec, ROWS, settings, Limits(encode=ROWS * spec.max_source))
    try:
        runner.open_lane(WIDTH)
        # Longest first: the rows that are still wanted are always the first ones.
        order = sorted(range(len(prompts)), key=lambda i: (-len(continuations[i]), len(prompts[i])))
        for first in range(0, len(order), ROWS):
            batch = order[first : first + ROWS]
            yield from _batch(runner, spec, batch, prompts, continuations, start)
            runner.give_back()
    finally:
        runner.close()


def _batch(
    runner: Runner,
    spec: EngineSpec,
    batch: Sequence[int],
    prompts: Sequence[Ids],
    continuations: Sequence[Ids],
    start: Ids,
) -> Iterator[tuple[int, int, Logits]]:
    outputs = _begin(runner, spec, [prompts[i] for i in batch], start)
    position, rows = 0, len(batch)
    while rows:
        assert outputs.logits is not None
        for row in range(rows):
            yield batch[row], position, outputs.logits[row]
        rows = sum(len(continuations[i]) > position + 1 for i in batch)
        if rows:
            runner.feed(WIDTH, [(row, continuations[batch[row]][position]) for row in range(rows)])
            outputs = runner.step(WIDTH, rows, logits=True)
        position += 1


def _begin(runner: Runner, spec: EngineSpec, prompts: Sequence[Ids], start: Ids) -> Outputs:
    """Run the prompts in the first rows; the outputs are those of position 0."""
    if not spec.has_encoder:
        return cast(PromptRunner, runner).prefill(0, prompts, logits=True)
    for row, source in enumerate(prompts):  # one by one: a batch would need memory for its longest source
        cast(SourceRunner, runner).encode([source], [((WIDTH, row),)])
    for token in start:
        runner.feed(WIDTH, [(row, token) for row in range(len(prompts))])
        outputs = runner.step(WIDTH, len(prompts), logits=True)
    return outputs
