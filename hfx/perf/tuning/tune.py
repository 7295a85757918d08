"""Tuning from end to end: a pace for the budget, the search, the final proof, and the change of what is published.

Owns the order of these and the Result. How each is done stands beside it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hfx.errors import LoadFailed, UsageError
from hfx.manifest import Manifest
from hfx.perf import cache
from hfx.perf.compare.side import Session
from hfx.perf.load import Closed, Plan
from hfx.perf.tuning import study as studies
from hfx.perf.tuning.outcome import Findings, Wish, line
from hfx.perf.tuning.pace import LEAST, STOP, Clock, Pace, pace
from hfx.perf.tuning.proof import FINAL, Proof, prove
from hfx.perf.tuning.score import p99, rate, score, share
from hfx.perf.tuning.search import Measure, Open, first, search, uninterrupted
from hfx.perf.tuning.serving import MADE_BY, Bench
from hfx.perf.tuning.settings import current, words
from hfx.perf.tuning.space import Settings, space
from hfx.perf.tuning.study import PUBLISHED, Study, Trial
from hfx.repository.catalog import model
from hfx.repository.edit import change, scratch
from hfx.strict_json import Json

PACE = ("seconds", "overhead", "margin")  # what the study keeps of it


def tune(wish: Wish, findings: Findings, session: Session) -> None:
    """Fill FINDINGS. An interrupt leaves the study on disk: the same call goes on with it.

    Raises UsageError (nothing to choose, a budget for fewer than two trials), LoadFailed where nothing keeps the SLO,
    and what a server raises that does not even serve the published model.
    """
    begin = time.monotonic()
    manifest = model(wish.repository, wish.name)
    choices = space(wish.repository, manifest, wish.device, os.cpu_count() or 1, wish.only, callers(wish.plans))
    findings.old = choices.old
    with (
        scratch(wish.repository, wish.name) as folder,
        studies.opened(study_file(wish), identity(wish, manifest), choices, wish.seed, wish.study is not None) as study,
    ):
        bench = Bench(wish.repository, wish.name, wish.device, wish.order, folder / "copies", session, choices.old)
        if study.trials:
            session.say(f"Going on with {len(study.trials)} trials of an earlier search")
        opener = _opener(wish, bench)
        clock = _begun(wish, study, opener, begin)
        findings.trials = study.trials
        session.say(line(findings.trials[0]))
        for trial in search(study, clock, opener, wish.trials):
            findings.trials.append(trial)
            session.say(line(trial))
        _judge(wish, findings, study, bench, clock)
        study.note(studies.DONE, True)


def _judge(wish: Wish, findings: Findings, study: Study, bench: Bench, clock: Clock) -> None:
    """The best trial, its proof, and what follows from it."""
    old, findings.best = study.old, best(findings.trials)
    if old is None or findings.best == old:
        findings.verdict = "No settings were better than those that are published: they stay."
        return
    bench.session.say(f"Proof: {findings.best.label} against what is published, {wish.rounds} rounds")
    sides = [bench.side(trial.label, trial.settings) for trial in (old, findings.best)]
    cases = [bench.case(plan, clock.pace.seconds, FINAL) for plan in _loads(wish, (old, findings.best))]
    findings.proof = prove(sides, cases, wish.rounds, bench.session, clock.until + clock.pace.proof)
    findings.verdict = findings.proof.words
    if findings.proof.proven and wish.apply:
        findings.applied = apply(wish, findings.best, findings.proof, bench)


def best(trials: Sequence[Trial]) -> Trial:
    """The best of the trials in full length. Raises LoadFailed where none keeps the SLO."""
    full = [trial for trial in trials if trial.state == "complete"]
    found = max(full, key=lambda trial: (score(trial.runs).kept, score(trial.runs).value), default=None)
    if found is None:
        reasons = [trial.reason for trial in trials if trial.reason]
        raise LoadFailed("No trial came to its end." + "".join(f" {reason}" for reason in reasons[:1]))
    top = score(found.runs)
    if not top.kept:
        raise LoadFailed(
            f"No settings keep {top.run.slo or 'all requests answered'}: at best {100 * share(top.run):.1f} % of the "
            f"requests did, with {words(found.settings)} ({top.run.load.label}: {rate(top.run):.4g}/s, "
            f"p99 {p99(top.run):.4g} ms).",
            "Ask for less: a smaller --concurrency or --rate, or a looser --slo.",
        )
    return found


def apply(wish: Wish, chosen: Trial, proof: Proof, bench: Bench) -> str:
    """Write the chosen settings into the published model, and say where."""
    name, edits = bench.edits(chosen.settings)
    assert proof.gain is not None
    record: dict[str, Json] = {
        "gain": proof.gain.median,
        "rounds": proof.gain.rounds,
        "load": score(chosen.runs).run.load.label,
        "slo": wish.order.slo.text if wish.order.slo else "",
        "cores": os.cpu_count() or 1,
    }
    change(wish.repository, name, edits, f"{MADE_BY} {wish.name}", record)
    return name


def study_file(wish: Wish) -> Path:
    """Where the trials are kept: one file for all searches of this user, unless one is named."""
    return wish.study or cache.root() / "tune.db"


def callers(plans: Sequence[Plan]) -> int | None:
    """The most requests at a time; None where nobody waits for answers."""
    closed = [plan.callers for plan in plans if isinstance(plan, Closed)]
    return max(closed) if len(closed) == len(plans) else None


def identity(wish: Wish, manifest: Manifest) -> Mapping[str, object]:
    """All but the choices that makes trials comparable: the model as it is, the load, the machine's cores."""
    order = wish.order
    return {
        "model": manifest.name,
        "files": {path: entry.sha256 for path, entry in manifest.files.items() if not path.endswith(".pbtxt")},
        "settings": current(wish.repository, manifest, wish.device),
        "device": wish.device,
        "loads": [plan.load(order.asks.words, "").label for plan in wish.plans],
        "data": hashlib.sha256(repr(order.asks.items).encode()).hexdigest(),
        "slo": order.slo.text if order.slo else "",
        "stream": order.stream,
        "cores": os.cpu_count(),
    }


def _opener(wish: Wish, bench: Bench) -> Open:
    @contextmanager
    def opened(label: str, settings: Settings) -> Iterator[Measure]:
        with bench.side(label, settings).opened(bench.session) as measure:
            yield lambda seconds: tuple(measure(bench.case(plan, seconds), 0) for plan in wish.plans)

    return opened


def _begun(wish: Wish, study: Study, opener: Open, begin: float) -> Clock:
    """The clock of the search: the pace follows from a first look at what is published, which is the first trial."""
    if study.old is not None:
        seconds, overhead, margin = (float(study.noted(name)) for name in PACE)
        return _clock(wish, Pace(seconds, len(wish.plans), wish.rounds, overhead, margin), begin)
    began = time.monotonic()
    with opener(PUBLISHED, study.space.old) as measure:
        overhead, began = time.monotonic() - began + STOP, time.monotonic()
        runs = uninterrupted(measure(LEAST))
        margin = max(0.0, (time.monotonic() - began) / len(runs) - LEAST)
        found = pace(runs, overhead, margin, wish.budget, wish.rounds)
        if found.least > wish.budget:
            raise UsageError(
                f"A budget of {wish.budget:g} s is too small for two trials and the proof: starting the server takes "
                f"{found.overhead:.1f} s, a measurement {found.seconds:.1f} s.",
                f"Give at least --budget {found.least + 1:.0f}s, or fewer loads.",
            )
        for name, value in zip(PACE, (found.seconds, overhead, margin), strict=True):
            study.note(name, value)
        clock = _clock(wish, found, begin)
        first(study, clock, measure)
    return clock


def _clock(wish: Wish, found: Pace, begin: float) -> Clock:
    return Clock(found, begin + wish.budget - found.proof)


def _loads(wish: Wish, sides: Sequence[Trial]) -> list[Plan]:
    """Those of the asked loads that a side held best."""
    best_of = {score(trial.runs).run.load.label for trial in sides}
    return [plan for plan in wish.plans if plan.load("", "").label in best_of]
