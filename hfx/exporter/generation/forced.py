"""An engine folder's logits at every position of the checkpoint's greedy continuations, compared with the checkpoint's.

Each position is predicted from the checkpoint's own tokens before it (teacher forcing), by the runner that serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.generation.limits import Forced
from hfx.exporter.generation.prompts import Ids
from hfx.exporter.generation.reference import Positions, Reference
from hfx.python_backends.engine.plan import Span
from hfx.python_backends.engine.runner import DecoderRunner, Outputs, Runner, SessionSettings
from hfx.python_backends.engine.runners import open_runner
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
    own, bundled = Tally(), Tally()
    errors, delta = Errors(), 0.0
    prompts = [prompt.ids for prompt in reference.prompts]
    for prompt, position, logits in forced_logits(runner, prompts, reference.greedy, start):
        expected = reference.positions[prompt]
        token, best = int(logits.argmax()), int(expected.best[position, 0])
        is_a_tie = is_tie(expected, position, best, token, 2 * reference.noise)
        (own if reference.prompts[prompt].own else bundled).count(token == best, is_a_tie)
        if position in expected.rows:
            errors.add(logits, expected.rows[position])
            delta = float(np.maximum(delta, np.abs(logits - expected.rows[position]).max()))  # NaN if any is
        elif not np.isfinite(logits).all():
            delta = float("nan")
    judged = own if own.positions else bundled
    return Forced(
        texts="verify-data" if own.positions else "bundled",
        positions=judged.positions,
        agreement=judged.agreement,
        ties=judged.ties / judged.positions,
        bundled_agreement=bundled.agreement if own.positions and bundled.positions else None,
        delta=delta,
        delta_share=delta / reference.largest,
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

    def count(self, same: bool, is_a_tie: bool) -> None:
        """Add one position."""
        self.positions += 1
        self.same += same
        self.ties += is_a_tie

    @property
    def agreement(self) -> float:
        """Of the positions that are no tie; 1 where all are."""
        decided = self.positions - self.ties
        return self.same / decided if decided else 1.0


@dataclass
class Errors:
    """Of rows of logits: the norm of the difference as a share of the norm of what is expected.

    What all logits of a row have in common is left out of both.
    """

    rows: int = 0
    squares: float = 0.0
    worst: float = 0.0

    def add(self, logits: Logits, expected: Logits) -> None:
        """Add one row."""
        difference, spread = logits - expected, float(np.linalg.norm(expected - expected.mean()))
        error = float(np.linalg.norm(difference - difference.mean())) / max(spread, TINY)
        self.rows += 1
        self.squares += error * error
        self.worst = float(np.maximum(self.worst, error))  # NaN if any is

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
