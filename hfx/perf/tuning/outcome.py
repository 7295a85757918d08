"""What a tuning is asked for, what is known of it at any moment, and the result file that follows.

Owns these values and their words. It must not know how anything is searched or proven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hfx.perf.load import Plan
from hfx.perf.measuring import MeasureSpec
from hfx.perf.results import Machine, Result, Run
from hfx.perf.results.schema import Scalar
from hfx.perf.tuning.proof import ROUNDS, Proof
from hfx.perf.tuning.score import p99, rate, score, share
from hfx.perf.tuning.settings import words
from hfx.perf.tuning.space import Settings
from hfx.perf.tuning.study import PUBLISHED, Trial


@dataclass(frozen=True)
class Wish:
    """What is to be tuned, and what it may cost.

    `budget` is seconds; `only` limits the settings, `trials` their number; without a `study` the trials are kept until
    the search is done.
    """

    repository: Path
    name: str
    device: str
    plans: tuple[Plan, ...]
    order: MeasureSpec
    budget: float
    only: tuple[str, ...] = ()
    rounds: int = ROUNDS
    trials: float = math.inf
    study: Path | None = None
    seed: int = 0
    apply: bool = False
    command: str = "hfx tune"


@dataclass
class Findings:
    """What is known so far: enough for a result at any moment."""

    old: Settings = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    proof: Proof | None = None
    verdict: str = ""
    applied: str = ""
    notes: list[str] = field(default_factory=list)


def result(wish: Wish, findings: Findings, machine: Machine) -> Result:
    """FINDINGS as a result file."""
    runs: list[Run] = [run for trial in findings.trials for run in trial.runs]
    failed = [trial for trial in findings.trials if trial.state == "failed"]
    notes = [f"{trial.label} ({words(trial.settings)}) failed: {' '.join(trial.reason.split())}" for trial in failed]
    best_label = findings.best.label if findings.best else ""
    proof = findings.proof
    proven = proof is not None and proof.proven
    details: dict[str, Scalar | list[Scalar] | dict[str, Scalar] | None] = {
        "baseline": PUBLISHED,
        "best": best_label,
        "chosen": best_label if proven else PUBLISHED,
        "published": dict(findings.old),
        "settings": dict(findings.best.settings if proven and findings.best else findings.old),
        "proven": proven,
        "verdict": findings.verdict,
        "gain": proof.gain.median if proof and proof.gain else None,
        "noise": proof.noise if proof else None,
        "applied": findings.applied,
        "trials": len(findings.trials),
        "stopped early": [trial.label for trial in findings.trials if trial.state == "pruned"],
        "failed": len(failed),
    }
    return Result(
        kind="tune",
        title=f"Tuning {wish.name} on {wish.device.upper()}",
        command=wish.command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        runs=(*runs, *(proof.runs if proof else ())),
        base=PUBLISHED,
        notes=(*notes, *findings.notes, *(proof.notes if proof else ())),
        details=details,
    )


def line(trial: Trial) -> str:
    """A trial in a line."""
    if not trial.runs:
        return f"{trial.label} failed: {' '.join(trial.reason.split())}"
    found = score(trial.runs)
    kept = "" if found.kept else f", {100 * share(found.run):.0f} % as wanted"
    return (
        f"{trial.label}{' (stopped early)' * (trial.state == 'pruned')}: {rate(found.run):.4g}/s, "
        f"p99 {p99(found.run):.3g} ms{kept}: {words(trial.settings)}"
    )
