"""Figures as people and programs read them: Markdown tables, goals, one JSON file. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.goals import Goal
from hfx.perf import machine as facts

PACKAGES = ("hfx", "torch", "transformers", "onnxruntime", "openvino", "tritonclient", "nvidia-pytriton")


def number(value: float | None) -> str:
    """A figure with three digits that mean something."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table under a heading."""
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def goals(found: Iterable[Goal]) -> str:
    """The table of goals."""
    return table("Goals", ("goal", "measured", "wanted", ""), map(_goal_row, found))


def _goal_row(goal: Goal) -> tuple[str, str, str, str]:
    wanted = f">= {goal.least:g}" if goal.least is not None else f"<= {goal.most:g}"
    return goal.words, number(goal.value), wanted, {True: "met", False: "missed", None: "not measured"}[goal.met]


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    found = facts.machine()
    versions = {name: found.versions[name] for name in PACKAGES if name in found.versions}
    return {"processor": found.processor, "cores": found.cores, "load_average": found.load, "versions": versions}


def machine_line(facts: Mapping[str, Any]) -> str:
    """The machine in a sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"{facts['processor']}, {facts['cores']} cores, load {facts['load_average']:.1f} at the start; {versions}."


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """One object, readable."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
