"""An engine's logits along the checkpoint's greedy continuations and at places of long texts, against the checkpoint's.

Each position is predicted from the checkpoint's own tokens before it (teacher forcing), by the runner that serves. The
prompt of a long text is run in the chunks that the scheduler makes of it. An encoder-decoder's rows begin with the
checkpoint's own keys and values, as its decoder reads one token a step: a thousand steps of BART-large take 20 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.generation.limits import Forced, Long
from hfx.exporter.generation.prompts import CHUNK, Ids, LongText
from hfx.exporter.generation.reference import Positions, Reference
from hfx.python_backends.engine.partition import Outputs
from hfx.python_backends.engine.plan import Span, part_start
from hfx.python_backends.engine.runners import DecoderRunner, Runner
from hfx.python_backends.engine.runtimes import open_runner
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import EngineSpec

ROWS = 16
WIDTH = 1  # one row a request
TINY = 1e-30  # logits that are all alike have no spread
Logits = NDArray[np.float32]


def open_rows(spec: EngineSpec, rows: int, settings: SessionSettings) -> Runner:
    """A runner with rows of one request each, ROWS or more. Raises the engine's ModelRefused if it can't run here."""
    runner = open_runner(spec, rows, settings)
    runner.open_partition(WIDTH)
    return runner


def measure_forced(runner: Runner, reference: Reference, start: Ids) -> Forced:
    """Compare every position."""
    own, bundled, errors = Tally(), Tally(), Errors()
    prompts = [prompt.ids for prompt in reference.prompts]
    for prompt, position, logits in forced_logits(runner, prompts, reference.greedy, start):
        expected = reference.positions[prompt]
        (own if reference.prompts[prompt].own else bundled).count(logits, expected, position, reference.noise)
        if position in expected.rows:
            errors.add(logits, expected.rows[position])
        elif not np.isfinite(logits).all():
            errors.delta = float("nan")
    judged = own if own.positions else bundled
    return Forced(
        texts="verify-data" if own.positions else "bundled",
        positions=judged.positions,
        agreement=judged.agreement,
        ties=judged.ties / judged.positions,
        bundled_agreement=bundled.agreement if own.positions and bundled.positions else None,
        delta=errors.delta,
        delta_share=errors.delta / reference.largest,
        rows=errors.rows,
        error=errors.mean,
        worst=errors.worst,
    )


@dataclass
class Tally:
    """Positions, those with the checkpoint's likeliest token, and those that are a tie."""

    positions: int = 0
    same: int = 0
    ties: int = 0

    def count(self, logits: Logits, expected: Positions, position: int, noise: float) -> None:
        """Add one position: logits are a tie where they are as high in torch as its own `noise` can tell."""
        token, best = int(logits.argmax()), int(expected.best[position, 0])
        self.positions += 1
        self.same += token == best
        self.ties += is_tie(expected, position, best, token, 2 * noise)

    @property
    def agreement(self) -> float:
        """Of the positions that are no tie; 1 where all are."""
        decided = self.positions - self.ties
        return self.same / decided if decided else 1.0


@dataclass
class Errors:
    """Of rows of logits: the norm of the difference as a share of the norm of what is expected.

    What all logits of a row have in common is left out of both. `delta` is the largest difference of any logit.
    """

    rows: int = 0
    squares: float = 0.0
    worst: float = 0.0
    delta: float = 0.0

    def add(self, logits: Logits, expected: Logits) -> None:
        """Add one row."""
        difference, spread = logits - expected, float(np.linalg.norm(expected - expected.mean()))
        error = float(np.linalg.norm(difference - difference.mean())) / max(spread, TINY)
        self.rows += 1
        self.squares += error * error
        self.worst = float(np.maximum(self.worst, error))  # NaN if any is
        self.delta = float(np.maximum(self.delta, np.abs(difference).max()))

    @property
    def mean(self) -> float:
        """The root of the mean square."""
        return float(np.sqrt(self.squares / max(self.rows, 1)))


def is_tie(expected: Positions, position: int, first: int, second: int, margin: float) -> bool:
    """Whether two different tokens have logits in torch that are at most `margin` apart, both among the best."""
    best = expected.best[position].tolist()
    if first == second or first not in best or second not in best:
        return False
    logits = expected.logits[position]
    return bool(abs(logits[best.index(first)] - logits[best.index(second)]) <= margin)


def forced_logits(
    runner: Runner, prompts: Sequence[Ids], continuations: Sequence[Ids], start: Ids
) -> Iterator[tuple[int, int, Logits]]:
    """(prompt, position, logits [vocabulary]) of each position of each continuation; a row is valid until the next.

    `start` is what an encoder-decoder's decoder begins with.
    """
    # Longest first: the rows that are still wanted are always the first ones.
    order = sorted(range(len(prompts)), key=lambda i: (-len(continuations[i]), len(prompts[i])))
    for first in range(0, len(order), ROWS):
        batch = order[first : first + ROWS]
        yield from _batch(runner, batch, prompts, continuations, start)
        runner.release_memory()


def _batch(
    runner: Runner,
    batch: Sequence[int],
    prompts: Sequence[Ids],
    continuations: Sequence[Ids],
    start: Ids,
) -> Iterator[tuple[int, int, Logits]]:
    outputs = _begin(runner, [prompts[i] for i in batch], start)
    position, rows = 0, len(batch)
    while rows:
        assert outputs.logits is not None
        for row in range(rows):
            yield batch[row], position, outputs.logits[row]
        rows = sum(len(continuations[i]) > position + 1 for i in batch)
        if rows:
            runner.partitions[WIDTH].set_next_tokens(
                [(row, continuations[batch[row]][position]) for row in range(rows)]
            )
            outputs = runner.partitions[WIDTH].step(rows, logits=True)
        position += 1


def _begin(runner: Runner, prompts: Sequence[Ids], start: Ids) -> Outputs:
    """Run the prompts in the first rows; the outputs are those of position 0."""
    if isinstance(runner, DecoderRunner):
        return runner.run([Span(prompt, rows=(row,)) for row, prompt in enumerate(prompts)], logits=True)
    for row, source in enumerate(prompts):  # one by one: a batch would need memory for its longest source
        runner.encode([source], [((WIDTH, row),)])
    for token in start:
        runner.partitions[WIDTH].set_next_tokens([(row, token) for row in range(len(prompts))])
        outputs = runner.partitions[WIDTH].step(len(prompts), logits=True)
    return outputs


def measure_long(runner: Runner, spec: EngineSpec, reference: Reference) -> Long | None:
    """Compare every place of the reference's long texts; None where it has none."""
    tally, errors = Tally(), Errors()
    for long in reference.long:
        indices = {place: index for index, place in enumerate(long.text.places)}
        for place, logits in long_logits(runner, spec, long.text, long.past):
            tally.count(logits, long.positions, indices[place], reference.noise)
            errors.add(logits[long.columns], long.sample[indices[place]])
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
        delta_share=errors.delta / reference.largest,
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
            assert outputs.logits is not None
            yield start - 1, outputs.logits[0]
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
    filled = 0
    for row, start in enumerate(text.starts):
        while start - filled > CHUNK:
            runner.run([Span(text.inputs[filled : filled + CHUNK], filled)], logits=False)
            filled += CHUNK
        first = part_start(filled, start)
        yield start, runner.run([Span(text.inputs[first:start], first, rows=(row,))], logits=True)
