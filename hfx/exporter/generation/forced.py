"""An engine folder's logits against the checkpoint's, at every position of the checkpoint's greedy continuations.

Owns the comparison of positions; the runs are teacher.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hfx.exporter.generation.figures import Forced
from hfx.exporter.generation.prompts import Ids
from hfx.exporter.generation.reference import Positions, Reference
from hfx.exporter.generation.teacher import forced_logits
from hfx.python_backends.engine.sessions import SessionSettings


def measure_forced(folder: Path, reference: Reference, start: Ids, settings: SessionSettings) -> Forced:
    """Compare every position. Raises the engine's ModelRefused where the folder can't run here."""
    own, bundled = Tally(), Tally()
    rows, delta = 0, 0.0
    prompts = [prompt.ids for prompt in reference.prompts]
    for prompt, position, logits in forced_logits(folder, prompts, reference.greedy, start, settings):
        expected = reference.positions[prompt]
        token, best = int(logits.argmax()), int(expected.best[position, 0])
        is_a_tie = is_tie(expected, position, best, token, 2 * reference.noise)
        (own if reference.prompts[prompt].own else bundled).count(token == best, is_a_tie)
        if position in expected.rows:
            rows += 1
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
        rows=rows,
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


def is_tie(expected: Positions, position: int, first: int, second: int, margin: float) -> bool:
    """Whether two different tokens have logits in torch that are at most `margin` apart, both among the best."""
    best = expected.best[position].tolist()
    if first == second or first not in best or second not in best:
        return False
    logits = expected.logits[position]
    return bool(abs(logits[best.index(first)] - logits[best.index(second)]) <= margin)
