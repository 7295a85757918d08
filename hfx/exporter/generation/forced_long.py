"""An engine's logits at places of long texts, compared with the checkpoint's.

A prompt is run in the chunks that the scheduler makes of it. An encoder-decoder's rows begin with the checkpoint's own
keys and values, as its decoder reads one token a step: a thousand steps of BART-large take 20 s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.generation.forced import Errors, Tally, is_tie
from hfx.exporter.generation.limits import Long
from hfx.exporter.generation.long_texts import LongText
from hfx.exporter.generation.reference import Reference
from hfx.python_backends.engine.plan import Span, part_start
from hfx.python_backends.engine.runner import DecoderRunner, Outputs, Runner
from hfx.python_backends.engine.spec import EngineSpec

WIDTH = 1
Logits = NDArray[np.float32]


def measure_long(runner: Runner, spec: EngineSpec, reference: Reference) -> Long | None:
    """Compare every place of the reference's long texts; None where it has none."""
    tally, errors, delta = Tally(), Errors(), 0.0
    for long in reference.long:
        indices = {place: index for index, place in enumerate(long.text.places)}
        for place, logits in long_logits(runner, spec, long.text, long.past):
            index = indices[place]
            token, best = int(logits.argmax()), int(long.positions.best[index, 0])
            tally.count(token == best, is_tie(long.positions, index, best, token, 2 * reference.noise))
            sample = logits[long.columns]
            errors.add(sample, long.sample[index])
            delta = float(np.maximum(delta, np.abs(sample - long.sample[index]).max()))  # NaN if any is
    runner.release_memory()  # not between texts: the first is the longest
    if not errors.rows:
        return None
    return Long(
        texts=len(reference.long),
        longest=max(long.text.longest for long in reference.long),
        positions=tally.positions,
        agreement=tally.agreement,
        ties=tally.ties / tally.positions,
        error=errors.mean,
        worst=errors.worst,
        delta_share=delta / reference.largest,
    )


def long_logits(
    runner: Runner, spec: EngineSpec, text: LongText, past: NDArray[np.float32] | None
) -> Iterator[tuple[int, Logits]]:
    """(place, logits [vocabulary]) of every place of a text; a row is valid until the next.

    `past` are the keys and values of an encoder-decoder's inputs (see TorchGenerator.logits_at).
    """
    partition = runner.partitions[WIDTH]
    if isinstance(runner, DecoderRunner):
        for start, outputs in _prompts(runner, text):
            yield start - 1, _only(outputs)
    else:
        assert past is not None
        shaped = past.reshape(*past.shape[:2], spec.kv_heads, spec.head_dim)
        runner.encode([text.source], [tuple((WIDTH, row) for row in range(len(text.starts)))])
        for row, start in enumerate(text.starts):
            partition.put_past(row, shaped[:, :start])
    for step in range(text.steps):
        partition.set_next_tokens([(row, text.inputs[start + step]) for row, start in enumerate(text.starts)])
        outputs = partition.step(len(text.starts), logits=True)
        assert outputs.logits is not None
        for start, logits in zip(text.starts, outputs.logits, strict=True):
            yield start + step, logits


def _prompts(runner: DecoderRunner, text: LongText) -> Iterator[tuple[int, Outputs]]:
    """Run the first inputs of each row as a prompt. What several have in common of whole chunks is run once."""
    chunk, filled = runner.limits.chunk, 0
    for row, start in enumerate(text.starts):
        while start - filled > chunk:
            runner.run([Span(text.inputs[filled : filled + chunk], filled)], logits=False)
            filled += chunk
        first = filled if runner.limits.mixed else part_start(filled, start)
        yield start, runner.run([Span(text.inputs[first:start], first, rows=(row,))], logits=True)


def _only(outputs: Outputs) -> Logits:
    assert outputs.logits is not None
    row: Logits = outputs.logits[0]
    return row
