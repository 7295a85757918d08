"""Figures as people and programs read them: Markdown tables, goals, one JSON file. Measures nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("hfx", "torch", "transformers", "optimum", "onnxruntime", "openvino", "tritonclient", "nvidia-pytriton")


@dataclass(frozen=True)
class Goal:
    """A figure beside what it should be: at least `least`, or at most `most`."""

    name: str
    value: float | None
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether it is reached; None where nothing could be measured."""
        if self.value is None:
            return None
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Name, figure, goal, verdict."""
        wanted = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        verdict = {True: "met", False: "missed", None: "not measured"}[self.met]
        return self.name, number(self.value), wanted, verdict


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
    return table("Goals", ("goal", "measured", "wanted", ""), (goal.row for goal in found))


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"processor": model, "cores": os.cpu_count(), "load_average": os.getloadavg()[0], "versions": versions}


def machine_line(facts: Mapping[str, Any]) -> str:
    """The machine in a sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"{facts['processor']}, {facts['cores']} cores, load {facts['load_average']:.1f} at the start; {versions}."


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """One object, readable."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
