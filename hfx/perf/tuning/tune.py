"""A whole `hfx tune`: compare settings, one dimension at a time, prove that the best gain something, and apply them.

The published settings are the first to beat. For each dimension, the settings to beat and the settings that differ from
them in this dimension are measured in turns, as by `hfx perf compare`. The best of these are the next to beat. The
search ends when no dimension has better settings, or when the budget is used up.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from hfx.errors import LoadFailed, UsageError
from hfx.manifest import created_now
from hfx.perf.compare.candidates import Candidate, Case, Session, changed
from hfx.perf.compare.comparison import compare
from hfx.perf.load import Closed, LoadLimits, Plan
from hfx.perf.measuring import MeasureSpec
from hfx.perf.report.tables import FINAL
from hfx.perf.results import Machine, Result, Run, Scalar
from hfx.perf.settings import edits, settings_line
from hfx.perf.tuning.proof import ROUNDS, Proof, prove, uninterrupted
from hfx.perf.tuning.scores import PUBLISHED, p99, rate, score
from hfx.perf.tuning.space import MODEL, Settings, Space, space
from hfx.repository.catalog import model
from hfx.repository.edit import Edit, change, scratch
from hfx.strict_json import Json

MADE_BY = "hfx tune"
STOP_SECONDS = 1.5  # time to end a server, which checks for that once a second
WARMUP_SHARE, WARMUP_SECONDS = 0.2, 0.5  # share of a measurement, and its maximum
SHORTEST, LONGEST, SHARE = 1.0, 30.0, 1 / 60  # seconds of a measurement, and the share of the budget in between


@dataclass(frozen=True)
class TuneSpec:
    """What to tune, and at which cost.

    `budget` is in seconds. `only` names the settings to search (empty: all).
    """

    repository: Path
    name: str
    device: str
    plans: tuple[Plan, ...]
    measure: MeasureSpec
    budget: float
    only: tuple[str, ...] = ()
    rounds: int = ROUNDS
    max_trials: float = math.inf
    apply: bool = False
    command: str = MADE_BY

    @property
    def seconds(self) -> float:
        """The length of a measurement in seconds. There is one measurement for each load."""
        return min(LONGEST, max(SHORTEST, SHARE * self.budget / len(self.plans)))


@dataclass(frozen=True)
class Trial:
    """Settings that were measured. `runs` has a run for each load; it is empty if the settings failed for `reason`."""

    label: str
    settings: Settings
    runs: tuple[Run, ...]
    reason: str = ""


@dataclass
class Findings:
    """The outcome so far, from which `result` can be made at any time."""

    old: Settings = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    proof: Proof | None = None
    verdict: str = ""
    applied: str = ""
    notes: list[str] = field(default_factory=list)


def tune(spec: TuneSpec, findings: Findings, session: Session) -> None:
    """Carry out a tuning, and fill `findings`.

    Raises UsageError (nothing to choose, or a budget for fewer than two trials), LoadFailed if no settings meet the
    SLO, and any HfxError of a server that can't serve the published model.
    """
    until = time.monotonic() + spec.budget
    manifest = model(spec.repository, spec.name)
    choices = space(spec.repository, manifest, spec.device, os.cpu_count() or 1, spec.only, max_callers(spec.plans))
    findings.old = choices.old
    with scratch(spec.repository, spec.name) as folder:
        copies = Copies(spec, folder / "copies", session, choices.old)
        published, costs = copies.measured_first()
        findings.trials.append(published)
        session.say(line(published))
        findings.best = search(choices, copies, costs, until, findings)
        _judge(spec, findings, copies, until - costs.measurement - STOP_SECONDS)


@dataclass(frozen=True)
class Costs:
    """Costs in seconds: `start` to start and end a server, and `measurement` for a measurement with its overhead."""

    start: float
    measurement: float
    loads: int
    rounds: int

    @property
    def candidate(self) -> float:
        """The seconds for a candidate of a comparison."""
        return self.start + self.loads * self.measurement

    @property
    def proof(self) -> float:
        """The seconds for the proof: two candidates, each under the best load of either candidate."""
        return 2 * self.start + 2 * self.rounds * min(self.loads, 2) * self.measurement

    def trials_until(self, until: float) -> int:
        """Return how many candidates can be compared with the best one if the proof must still end by `until`."""
        return int((until - time.monotonic() - self.proof) / self.candidate) - 1


@dataclass(frozen=True)
class Copies:
    """Makes changed copies of the published model in `folder`.

    A Triton of its own serves each copy that is measured.
    """

    spec: TuneSpec
    folder: Path
    session: Session
    published: Settings

    def measured_first(self) -> tuple[Trial, Costs]:
        """Measure the published settings, and return their trial and the resulting costs.

        Raises UsageError if the budget is too small.
        """
        spec, began = self.spec, time.monotonic()
        with self.candidate(PUBLISHED, self.published).opened(self.session) as measure:
            started = time.monotonic()
            runs = uninterrupted(tuple(measure(self.case(plan), 0) for plan in spec.plans))
            measurement = (time.monotonic() - started) / len(runs)
        costs = Costs(started - began + STOP_SECONDS, measurement, len(runs), spec.rounds)
        least = costs.proof + 3 * costs.candidate
        if least > spec.budget:
            raise UsageError(
                f"A budget of {spec.budget:g} s is too small for two trials and the proof: starting the server takes "
                f"{costs.start:.1f} s, a measurement {costs.measurement:.1f} s.",
                f"Give at least --budget {least + 1:.0f}s, or fewer loads.",
            )
        return Trial(PUBLISHED, self.published, runs), costs

    def compared(self, trials: Mapping[str, Settings]) -> list[Trial]:
        """Measure the settings in `trials` (label -> settings) in turns, and return a trial for each."""
        notes: list[str] = []
        candidates = [self.candidate(label, settings) for label, settings in trials.items()]
        with closing(compare(candidates, [*map(self.case, self.spec.plans)], 1, notes, self.session)) as measured:
            runs = uninterrupted(tuple(measured))
        if self.session.stop.is_set():
            raise KeyboardInterrupt
        own = {label: tuple(run for run in runs if run.subject.label == label) for label in trials}
        return [
            Trial(label, settings, own[label])
            if len(own[label]) == len(self.spec.plans)
            else Trial(label, settings, (), _reason(label, notes))
            for label, settings in trials.items()
        ]

    def candidate(self, label: str, settings: Settings) -> Candidate:
        """Return the model with `settings`. Its runs name only the settings that differ from the published ones."""
        name, changes = self.edits(settings)
        other = {key: value for key, value in settings.items() if value != self.published.get(key)}
        copy = self.folder / label.replace(" ", "-")
        return changed(label, self.spec.repository, name, changes, copy, MADE_BY, self.spec.device, other)

    def edits(self, settings: Settings) -> tuple[str, tuple[Edit, ...]]:
        """Return the name of the model that `settings` choose, and the edits for it."""
        spec, name = self.spec, str(settings.get(MODEL, self.spec.name))
        numbers = {key: int(value) for key, value in settings.items() if key != MODEL}
        return name, edits(spec.repository, model(spec.repository, name), numbers, spec.device)

    def case(self, plan: Plan, name: str = "") -> Case:
        """Return a measurement of `plan`, after a short warm-up."""
        seconds = self.spec.seconds
        warmup = min(WARMUP_SECONDS, WARMUP_SHARE * seconds)
        limits = LoadLimits(seconds=seconds, warmup_seconds=warmup, timeout=self.spec.measure.limits.timeout)
        return Case(plan, replace(self.spec.measure, limits=limits), name)


def search(choices: Space, copies: Copies, costs: Costs, until: float, findings: Findings) -> Trial:
    """Measure settings until no dimension has better ones, the time `until` is reached, or there are enough trials.

    `until` is a time.monotonic(). `findings` already has the first trial; the others are added. Settings that can't be
    served are a failed trial. Returns the best trial. Raises LoadFailed if it does not meet the SLO.
    """
    best, improves = findings.trials[0], True
    while improves:
        improves = False
        for dimension in choices.dimensions:
            tried = [trial.settings for trial in findings.trials]
            options = ({**best.settings, **option} for option in dimension.options.values())
            room = max(0, min(costs.trials_until(until), copies.spec.max_trials - len(tried)))
            fresh = [settings for settings in options if settings not in tried][: int(room)]
            if not fresh:
                continue
            labels = {f"trial {len(tried) + at}": settings for at, settings in enumerate(fresh)}
            again, *trials = copies.compared({best.label: best.settings, **labels})
            if best is findings.trials[0] and again.runs:  # use the new runs, which were measured beside the others
                findings.trials[0] = best = again
            findings.trials += trials
            for trial in trials:
                copies.session.say(line(trial))
            found = max((each for each in (again, *trials) if each.runs), key=_rank, default=again)
            if found is not again:
                best, improves = found, True
    check_good(best)
    return best


def _reason(label: str, notes: Sequence[str]) -> str:
    """Return why a candidate has no runs, from the notes of `compare`, which begin with a label."""
    own = (note.removeprefix(label).lstrip(", ") for note in notes if note.startswith((f"{label} ", f"{label},")))
    return next(own, "it was not measured")


def _rank(trial: Trial) -> tuple[bool, float]:
    found = score(trial.runs)
    return found.is_good, found.value


def check_good(best: Trial) -> None:
    """Raise LoadFailed if the best settings do not meet the SLO."""
    top = score(best.runs)
    if not top.is_good:
        raise LoadFailed(
            f"No settings keep {top.run.slo or 'all requests answered'}: at best {100 * top.run.good_share:.1f} % "
            f"of the requests did, with {settings_line(best.settings)} ({top.run.load.label}: {rate(top.run):.4g}/s, "
            f"p99 {p99(top.run):.4g} ms).",
            "Ask for less: a smaller --concurrency or --rate, or a looser --slo.",
        )


def max_callers(plans: Sequence[Plan]) -> int | None:
    """Return the most concurrent requests of closed loops; None if a plan is open."""
    closed = [plan.callers for plan in plans if isinstance(plan, Closed)]
    return max(closed) if len(closed) == len(plans) else None


def line(trial: Trial) -> str:
    """Return a trial as one line of text."""
    if not trial.runs:
        return f"{trial.label} failed: {trial.reason}"
    top = score(trial.runs)
    share = "" if top.is_good else f", {100 * top.run.good_share:.0f} % as wanted"
    figures = f"{rate(top.run):.4g}/s, p99 {p99(top.run):.3g} ms{share}"
    return f"{trial.label}: {figures}: {settings_line(trial.settings)}"


def result(spec: TuneSpec, findings: Findings, machine: Machine) -> Result:
    """Return `findings` as a Result for a result file."""
    runs: list[Run] = [run for trial in findings.trials for run in trial.runs]
    failed = [trial for trial in findings.trials if not trial.runs]
    notes = [f"{trial.label} ({settings_line(trial.settings)}) failed: {trial.reason}" for trial in failed]
    best_label, proof = findings.best.label if findings.best else "", findings.proof
    proven = proof is not None and proof.proven
    details: dict[str, Scalar | list[Scalar] | dict[str, Scalar] | None] = {
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
        "failed": len(failed),
    }
    return Result(
        kind="tune",
        title=f"Tuning {spec.name} on {spec.device.upper()}",
        command=spec.command,
        created=created_now(),
        machine=machine,
        runs=(*runs, *(proof.runs if proof else ())),
        base=PUBLISHED,
        notes=(*notes, *findings.notes, *(proof.notes if proof else ())),
        details=details,
    )


def _judge(spec: TuneSpec, findings: Findings, copies: Copies, last: float) -> None:
    """Fill in the best trial, its proof and the verdict. Apply the settings if `spec.apply` is set.

    No measurement begins after `last` (time.monotonic).
    """
    old = findings.trials[0]
    assert findings.best is not None
    if findings.best.settings == old.settings:
        findings.verdict = f"None of {len(findings.trials)} trials beat the published settings, which stay."
        return
    copies.session.say(f"Proof: {findings.best.label} against the published settings, {spec.rounds} rounds")
    pair = (old, findings.best)
    best_loads = {score(trial.runs).run.load.label for trial in pair}
    plans = [plan for plan in spec.plans if plan.load("", "").label in best_loads]
    cases = [copies.case(plan, FINAL) for plan in plans]
    both = [copies.candidate(trial.label, trial.settings) for trial in pair]
    findings.proof = prove(both, cases, spec.rounds, copies.session, last)
    findings.verdict = findings.proof.verdict
    if findings.proof.proven and spec.apply:
        findings.applied = _apply(spec, findings.best, findings.proof, copies)


def _apply(spec: TuneSpec, chosen: Trial, proof: Proof, copies: Copies) -> str:
    """Write the chosen settings into the published model, and return the model's name."""
    name, changes = copies.edits(chosen.settings)
    assert proof.gain is not None
    record: dict[str, Json] = {
        "gain": proof.gain.median,
        "rounds": proof.gain.rounds,
        "load": score(chosen.runs).run.load.label,
        "slo": spec.measure.slo.text if spec.measure.slo else "",
        "cores": os.cpu_count() or 1,
    }
    change(spec.repository, name, changes, f"{MADE_BY} {spec.name}", record)
    return name
