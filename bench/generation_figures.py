"""The figures of one work, and the ratios between them; several works together as one JSON file.

Owns medians, spreads and the file's format. Measures and prints nothing.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# (way, precision, case, figure)
Key = tuple[str, str, str, str]
LABELS = ("way", "precision", "case", "figure")


@dataclass
class Result:
    """What one work gave: figures by round, facts of the work's own form, and notes on ways that did not run."""

    figures: dict[Key, dict[int, float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def add(self, key: Key, turn: int, value: float) -> None:
        """A figure of round `turn`."""
        self.figures.setdefault(key, {})[turn] = value

    def median(self, key: Key) -> float | None:
        """Over the rounds; None where nothing was measured."""
        values = self.figures.get(key)
        return statistics.median(values.values()) if values else None

    def spread(self, key: Key) -> tuple[float, float] | None:
        """Least and most of the rounds."""
        values = self.figures.get(key)
        return (min(values.values()), max(values.values())) if values else None

    def ratio(self, over: Key, under: Key) -> float | None:
        """Median over the rounds that both took part in: what slows a whole round down cancels out."""
        theirs, ours = self.figures.get(over, {}), self.figures.get(under, {})
        shared = [theirs[turn] / ours[turn] for turn in theirs if turn in ours]
        return statistics.median(shared) if shared else None

    def cases(self, figure: str) -> list[str]:
        """The cases that have `figure`, in the order they were measured."""
        return list(dict.fromkeys(key[2] for key in self.figures if key[3] == figure))

    def ways(self, figure: str) -> list[tuple[str, str]]:
        """(way, precision) of those that have `figure`, in the order they were measured."""
        return list(dict.fromkeys(key[:2] for key in self.figures if key[3] == figure))


Results = dict[str, Result]  # by work


def load(path: Path) -> Results:
    """The results in a file that `save` wrote; none where there is no file."""
    if not path.is_file():
        return {}
    works: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["works"]
    return {
        name: Result(
            {_key(row): {int(turn): value for turn, value in row["rounds"].items()} for row in work["figures"]},
            work["facts"],
            work["notes"],
            work["machine"],
        )
        for name, work in works.items()
    }


def save(path: Path, results: Results) -> None:
    """All works in one file."""
    works = {
        name: {
            "machine": result.machine,
            "notes": result.notes,
            "facts": result.facts,
            "figures": [
                {**dict(zip(LABELS, key, strict=True)), "median": result.median(key), "rounds": values}
                for key, values in result.figures.items()
            ],
        }
        for name, result in results.items()
    }
    path.write_text(json.dumps({"works": works}, indent=1) + "\n", encoding="utf-8")


def _key(row: Mapping[str, Any]) -> Key:
    return row["way"], row["precision"], row["case"], row["figure"]
