"""A trial: a changed copy of the published model on a real Triton of its own, whole ensemble, under the asked loads.

Owns the copies and the servers. It must not know which settings are tried, or why.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hfx.perf.compare.published import memory_needed
from hfx.perf.compare.side import Case, Measure, Session, Side, served
from hfx.perf.load import Limits, Plan
from hfx.perf.measuring import MeasureSpec
from hfx.perf.tuning.settings import MODEL, edits
from hfx.perf.tuning.space import Settings
from hfx.repository.catalog import model
from hfx.repository.edit import Edit, changed_copy

WARMUP_SHARE, WARMUP_SECONDS = 0.2, 0.5  # before a measurement that follows another load, or a server's start
MADE_BY = "hfx tune"


@dataclass(frozen=True)
class Bench:
    """What is tuned: a published model, what it is asked, and where its copies go."""

    repository: Path
    name: str
    device: str
    order: MeasureSpec
    copies: Path
    session: Session
    published: Settings = field(default_factory=dict)

    def side(self, label: str, settings: Settings) -> Side:
        """The model with SETTINGS, served while it is open. Runs name the settings that are not the published ones."""
        name, changes = self.edits(settings)
        told = {key: value for key, value in settings.items() if value != self.published.get(key)}
        folder = self.copies / label.replace(" ", "-")

        @contextmanager
        def opened(session: Session) -> Iterator[Measure]:
            try:
                changed_copy(self.repository, name, changes, folder, MADE_BY)
                with served(label, folder, name, self.device, told).opened(session) as measure:
                    yield measure
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        return Side(label, opened, memory_needed(model(self.repository, name), self.device))

    def edits(self, settings: Settings) -> tuple[str, tuple[Edit, ...]]:
        """The model that SETTINGS choose, and how it is to be changed."""
        name = str(settings.get(MODEL, self.name))
        numbers = {key: int(value) for key, value in settings.items() if key != MODEL}
        return name, edits(self.repository, model(self.repository, name), numbers, self.device)

    def case(self, plan: Plan, seconds: float, name: str = "") -> Case:
        """A load for so many seconds."""
        warmup = min(WARMUP_SECONDS, WARMUP_SHARE * seconds)
        limits = Limits(seconds=seconds, warmup_seconds=warmup, timeout=self.order.limits.timeout)
        return Case(plan, replace(self.order, limits=limits), name)
