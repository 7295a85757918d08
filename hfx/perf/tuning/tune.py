"""A whole `hfx tune`: plan the budget, search, prove the best settings, and apply them to the published model."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hfx.errors import LoadFailed, UsageError
from hfx.manifest import Manifest, created_now
from hfx.perf import cache
from hfx.perf.compare.candidates import Candidate, Case, Session, changed
from hfx.perf.load import Closed, LoadLimits, Plan
from hfx.perf.measuring import MeasureSpec
from hfx.perf.report.tables import FINAL
from hfx.perf.results import Machine, Result, Run, Scalar
from hfx.perf.tuning import search
from hfx.perf.tuning import study as studies
from hfx.perf.tuning.space import MODEL, Settings, current, edits, settings_line, space
from hfx.perf.tuning.study import PUBLISHED, Study, Trial, p99, rate, score
from hfx.repository.catalog import model
from hfx.repository.edit import Edit, change, scratch
from hfx.strict_json import Json

MADE_BY = "hfx tune"
STOP_SECONDS = 1.5  # to end a server, which checks for that once a second
WARMUP_SHARE, WARMUP_SECONDS = 0.2, 0.5  # of a measurement; at most


@dataclass(frozen=True)
class TuneSpec:
    """What to tune, and at which cost.

    `budget` is in seconds. `only` names the settings to search (none: all). `study` is the file of the trials; without
    it they are kept in the cache until the search is done.
    """

    repository: Path
    name: str
    device: str
    plans: tuple[Plan, ...]
    measure: MeasureSpec
    budget: float
    only: tuple[str, ...] = ()
    rounds: int = search.ROUNDS
    max_trials: float = math.inf
    study: Path | None = None
    seed: int = 0
    apply: bool = False
    command: str = MADE_BY


@dataclass
class Findings:
    """The outcome so far, from which `result` can be made at any moment."""

    old: Settings = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    proof: search.Proof | None = None
    verdict: str = ""
    applied: str = ""
    notes: list[str] = field(default_factory=list)


def tune(spec: TuneSpec, findings: Findings, session: Session) -> None:
    """Fill `findings`. After an interrupt, the same call continues with the study on disk.

    Raises UsageError (nothing to choose, or a budget for fewer than two trials), LoadFailed if no settings keep the
    SLO, and any HfxError of a server that can't serve the published model.
    """
    begin = time.monotonic()
    manifest = model(spec.repository, spec.name)
    choices = space(spec.repository, manifest, spec.device, os.cpu_count() or 1, spec.only, max_callers(spec.plans))
    findings.old = choices.old
    path = spec.study or cache.root() / "tune.db"
    with (
        scratch(spec.repository, spec.name) as folder,
        studies.opened(path, identity(spec, manifest), choices, spec.seed, spec.study is not None) as study,
    ):
        copies = Copies(spec, folder / "copies", session, choices.old)
        if study.trials:
            session.say(f"Continuing with {len(study.trials)} trials of an earlier search")
        planned = _planned(spec, study, copies.opened)
        until = begin + spec.budget
        findings.trials = study.trials
        session.say(line(findings.trials[0]))
        for trial in search.search(study, planned, until, copies.opened, spec.max_trials):
            findings.trials.append(trial)
            session.say(line(trial))
        _judge(spec, findings, copies, planned, until)


@dataclass(frozen=True)
class Copies:
    """Makes changed copies of the published model in `folder`, each served by its own Triton while it is measured."""

    spec: TuneSpec
    folder: Path
    session: Session
    published: Settings

    @contextmanager
    def opened(self, label: str, settings: Settings) -> Iterator[search.Measure]:
        """Serve a copy with `settings`; gives the function that measures all loads on it."""
        with self.candidate(label, settings).opened(self.session) as measure:
            yield lambda seconds: tuple(measure(self.case(plan, seconds), 0) for plan in self.spec.plans)

    def candidate(self, label: str, settings: Settings) -> Candidate:
        """The model with `settings`. Its runs name only the settings that differ from the published ones."""
        name, changes = self.edits(settings)
        other = {key: value for key, value in settings.items() if value != self.published.get(key)}
        copy = self.folder / label.replace(" ", "-")
        return changed(label, self.spec.repository, name, changes, copy, MADE_BY, self.spec.device, other)

    def edits(self, settings: Settings) -> tuple[str, tuple[Edit, ...]]:
        """The name of the model that `settings` choose, and the edits for it."""
        spec, name = self.spec, str(settings.get(MODEL, self.spec.name))
        numbers = {key: int(value) for key, value in settings.items() if key != MODEL}
        return name, edits(spec.repository, model(spec.repository, name), numbers, spec.device)

    def case(self, plan: Plan, seconds: float, name: str = "") -> Case:
        """A measurement of `plan` for so many seconds, after a short warm-up."""
        warmup = min(WARMUP_SECONDS, WARMUP_SHARE * seconds)
        limits = LoadLimits(seconds=seconds, warmup_seconds=warmup, timeout=self.spec.measure.limits.timeout)
        return Case(plan, replace(self.spec.measure, limits=limits), name)


def best(trials: Sequence[Trial]) -> Trial:
    """The best trial of those in full length. Raises LoadFailed if none keeps the SLO."""
    full = [trial for trial in trials if trial.state == "complete"]
    found = max(full, key=lambda trial: (score(trial.runs).kept, score(trial.runs).value), default=None)
    if found is None:
        reasons = [trial.reason for trial in trials if trial.reason]
        raise LoadFailed("No trial came to its end." + "".join(f" {reason}" for reason in reasons[:1]))
    top = score(found.runs)
    if not top.kept:
        raise LoadFailed(
            f"No settings keep {top.run.slo or 'all requests answered'}: at best {100 * top.run.kept:.1f} % of the "
            f"requests did, with {settings_line(found.settings)} ({top.run.load.label}: {rate(top.run):.4g}/s, "
            f"p99 {p99(top.run):.4g} ms).",
            "Ask for less: a smaller --concurrency or --rate, or a looser --slo.",
        )
    return found


def max_callers(plans: Sequence[Plan]) -> int | None:
    """The most concurrent requests of closed loops; None if a plan is open."""
    closed = [plan.callers for plan in plans if isinstance(plan, Closed)]
    return max(closed) if len(closed) == len(plans) else None


def identity(spec: TuneSpec, manifest: Manifest) -> Mapping[str, object]:
    """Trials are comparable, and in one study, if this is equal: the model, the load, the SLO, the cores."""
    requests, slo = spec.measure.requests, spec.measure.slo
    return {
        "model": manifest.name,
        "files": {path: entry.sha256 for path, entry in manifest.files.items() if not path.endswith(".pbtxt")},
        "settings": current(spec.repository, manifest, spec.device),
        "device": spec.device,
        "loads": [plan.load(requests.description, "").label for plan in spec.plans],
        "data": hashlib.sha256(repr(requests.items).encode()).hexdigest(),
        "slo": slo.text if slo else "",
        "stream": spec.measure.stream,
        "cores": os.cpu_count(),
    }


def line(trial: Trial) -> str:
    """A trial as one line of text."""
    if not trial.runs:
        return f"{trial.label} failed: {trial.reason}"
    top = score(trial.runs)
    kept = "" if top.kept else f", {100 * top.run.kept:.0f} % as wanted"
    early = " (stopped early)" if trial.state == "pruned" else ""
    figures = f"{rate(top.run):.4g}/s, p99 {p99(top.run):.3g} ms{kept}"
    return f"{trial.label}{early}: {figures}: {settings_line(trial.settings)}"


def result(spec: TuneSpec, findings: Findings, machine: Machine) -> Result:
    """`findings` as a result file."""
    runs: list[Run] = [run for trial in findings.trials for run in trial.runs]
    failed = [trial for trial in findings.trials if trial.state == "failed"]
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
        "stopped early": [trial.label for trial in findings.trials if trial.state == "pruned"],
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


def _planned(spec: TuneSpec, study: Study, open_trial: search.Open) -> search.Budget:
    """The budget, planned by a short run of the published settings. Also makes the first trial of a new study."""
    began = time.monotonic()
    with open_trial(PUBLISHED, study.space.old) as measure:
        overhead, began = time.monotonic() - began + STOP_SECONDS, time.monotonic()
        runs = search.uninterrupted(measure(search.FIRST))
        margin = max(0.0, (time.monotonic() - began) / len(runs) - search.FIRST)
        planned = search.budget(runs, overhead, margin, spec.budget, spec.rounds)
        if planned.least > spec.budget:
            raise UsageError(
                f"A budget of {spec.budget:g} s is too small for two trials and the proof: starting the server takes "
                f"{overhead:.1f} s, a measurement {planned.seconds:.1f} s.",
                f"Give at least --budget {planned.least + 1:.0f}s, or fewer loads.",
            )
        if not study.trials:
            search.first(study, planned, measure)
    return planned


def _judge(spec: TuneSpec, findings: Findings, copies: Copies, planned: search.Budget, until: float) -> None:
    """Fill in the best trial, its proof and the verdict; apply the settings if `spec.apply` says so."""
    old, findings.best = findings.trials[0], best(findings.trials)
    if findings.best == old:
        findings.verdict = f"None of {len(findings.trials)} trials beat the published settings, which stay."
        return
    copies.session.say(f"Proof: {findings.best.label} against the published settings, {spec.rounds} rounds")
    pair = (old, findings.best)
    best_loads = {score(trial.runs).run.load.label for trial in pair}
    plans = [plan for plan in spec.plans if plan.load("", "").label in best_loads]
    cases = [copies.case(plan, planned.seconds, FINAL) for plan in plans]
    both = [copies.candidate(trial.label, trial.settings) for trial in pair]
    last = until - planned.seconds - planned.margin - STOP_SECONDS
    findings.proof = search.prove(both, cases, spec.rounds, copies.session, last)
    findings.verdict = findings.proof.verdict
    if findings.proof.proven and spec.apply:
        findings.applied = _apply(spec, findings.best, findings.proof, copies)


def _apply(spec: TuneSpec, chosen: Trial, proof: search.Proof, copies: Copies) -> str:
    """Write the chosen settings into the published model, and return its name."""
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
