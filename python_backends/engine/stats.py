"""Counters of an engine: what metrics are made of.

Owns the numbers; knows nothing of where they come from and who reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stats:
    """An engine at one moment. Seconds and counts are totals since it was opened.

    `slots`, `slots_used`, `slots_free` are rows; `waiting` requests have none yet. `steps` are decode steps, one for
    each lane, and `step_seconds` their time with all that Python does; `prompt_runs` and `prompt_seconds` are those of
    prefills, chunks and encodes. `refused` counts by the name of the error.
    """

    slots: int
    slots_used: int
    slots_free: int
    waiting: int
    requests: int
    steps: int
    step_seconds: float
    prompt_runs: int
    prompt_seconds: float
    prompt_tokens: int
    tokens: int
    completed: int
    cancelled: int
    failed: int
    refused: Mapping[str, int]


@dataclass
class Counters:
    """What is counted as it happens."""

    steps: int = 0
    step_seconds: float = 0.0
    prompt_runs: int = 0
    prompt_seconds: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def snapshot(self, slots: int, slots_free: int, waiting: int, requests: int) -> Stats:
        """With what there is at the moment."""
        return Stats(
            slots=slots,
            slots_used=slots - slots_free,
            slots_free=slots_free,
            waiting=waiting,
            requests=requests,
            steps=self.steps,
            step_seconds=self.step_seconds,
            prompt_runs=self.prompt_runs,
            prompt_seconds=self.prompt_seconds,
            prompt_tokens=self.prompt_tokens,
            tokens=self.tokens,
            completed=self.completed,
            cancelled=self.cancelled,
            failed=self.failed,
            refused=dict(self.refused),
        )
