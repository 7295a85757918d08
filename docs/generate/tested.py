"""The page docs/tested.md: the runs of the committed results and of tested.toml, and what was not tested."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from docs.generate import tables
from hfx.releases import DEFAULT_TAG, RELEASES

ROOT = Path(__file__).resolve().parents[2]
FACTS, RESULTS = Path(__file__).with_name("tested.toml"), ROOT / "bench/results/scenarios.jsonl"
COLUMNS = {
    "python": "Python", "triton": "Triton", "onnxruntime": "ONNX Runtime", "processor": "processor", "gpu": "GPU",
    "what": "what ran", "proof": "results", "date": "last run",
}  # fmt: skip
NEVER = (
    "NVIDIA's images, which have their own Python, CUDA and backends ([Proven, and not](deploy.md#proven-and-not))",
    "Other GPUs, and several of them ([GPU](limits.md#gpu))",
    "A server on processors without AVX-512, except for simulated ones",
    "A processor for ARM64: it was emulated, and nothing was measured ([ARM64](benchmarks-arm64.md))",
)

Run = Mapping[str, Any]


def tested_page() -> str:
    """Return the text of docs/tested.md."""
    runs = sorted((*_facts(), *_benchmarks()), key=lambda run: str(run["date"]), reverse=True)
    text = (
        "The runs whose results are in the repository. What a row leaves open was not recorded, or had no part in the "
        "run. A combination without a row was not tested."
    )
    rows = [[str(run.get(column, "")) for column in COLUMNS] for run in runs]
    return "\n".join(
        [
            f"# Tested versions\n\n{tables.wrapped(text)}\n",
            *tables.table(tuple(COLUMNS.values()), rows),
            "\n## Not tested\n",
            *(f"- {item}" for item in (*_untested(runs), *NEVER)),
            "",
        ]
    )


def _facts() -> list[Run]:
    runs: list[Run] = tomllib.loads(FACTS.read_text(encoding="utf-8"))["run"]
    return runs


def _benchmarks() -> Iterable[Run]:
    """Return a run for each processor and version of ONNX Runtime in bench/results, with its latest date."""
    entries = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    stamps = [entry["stamp"] for entry in entries if isinstance(entry, dict)]
    runs = {}
    for stamp in sorted(stamps, key=lambda stamp: str(stamp["created"])):
        processor, onnxruntime = stamp["processor"], stamp["versions"]["onnxruntime"]
        runs[processor, onnxruntime] = {
            "triton": f"{DEFAULT_TAG}, embedded",
            "onnxruntime": onnxruntime,
            "processor": processor,
            "what": "`make bench`: scenarios behind Triton, against peers",
            "proof": "[Benchmarks](benchmarks.md#results)",
            "date": stamp["created"][:10],
        }
    return runs.values()


def _untested(runs: Iterable[Run]) -> Iterable[str]:
    """Return the supported versions of Python and the known releases of Triton that no run has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r":: (3\.\d+)", " ".join(project["classifiers"]))
    ran = {str(run.get("python")) for run in runs}
    tags = {str(run.get("triton"))[:5] for run in runs}
    others = " and ".join(each for each in pythons if each not in ran)
    yield f"Python {others}: a test only resolves the packages of each extra"
    releases = ", ".join(f"{each.tag} ({each.ort})" for each in RELEASES if each.tag not in tags)
    yield f"These releases of Triton, with their ONNX Runtime: {releases}"
    yield f"Later releases of Triton: not looked at. The newest release that was looked at is {RELEASES[-1].tag}"
