"""The trials of a search on disk, an Optuna study in an SQLite file that survives a kill; and how good each is."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import optuna
from filelock import FileLock, Timeout
from optuna.trial import TrialState
from pydantic import TypeAdapter

from hfx.errors import UsageError
from hfx.perf.compare.cost import KEPT
from hfx.perf.results import Run
from hfx.perf.tuning.space import Settings, Space

LATE = 1e-4  # what a second of p99 costs where the rate is given: it decides among settings that hold it


@dataclass(frozen=True)
class Score:
    """`value`: higher is better; `kept`: enough requests kept the SLO; `run`: the load that it comes from."""

    value: float
    kept: bool
    run: Run

    @property
    def figure(self) -> float:
        """What two scores of the same load are divided by: their value, or their speed at a given rate."""
        return self.run.kept**2 / p99(self.run) if self.run.load.kind == "open" else self.value


def score(runs: Sequence[Run]) -> Score:
    """The score of one trial: of the load that it holds best.

    Closed loops count successful requests (tokens, where they are written) a second; a load that misses the SLO counts
    the less, the more requests miss it. Of an open load the rate is given: the share that keeps the SLO counts, then
    the latency.
    """
    return max((_score(run) for run in runs), key=lambda each: (each.kept, each.value))


def rate(run: Run) -> float:
    """What a run gets done in a second: tokens where they are written, else requests."""
    return run.tokens_per_second or run.throughput


def p99(run: Run) -> float:
    """Milliseconds; infinite without a single answer."""
    return run.latency.p99 if run.latency else float("inf")


def _score(run: Run) -> Score:
    good = run.kept
    if run.load.kind == "open":
        return Score(round(min(good, KEPT), 2) - LATE * min(p99(run), 6e4) / 1e3, good >= KEPT, run)
    return Score(rate(run) if good >= KEPT else rate(run) * good**2, good >= KEPT, run)


State = Literal["complete", "pruned", "failed"]
PUBLISHED = "published"  # the label of the settings as they were found
FACTOR = 3  # of successive halving: a trial in so many gets its next, longer measurement
MAX_PROPOSALS = 100  # random ones in turn that were all tried: there is nothing new


@dataclass(frozen=True)
class Trial:
    """Settings that were tried. `runs` are those of its longest measurement, one for each load.

    complete: measured in full length; pruned: ended early, as others were better; failed: `reason` says why.
    """

    label: str
    settings: Settings
    state: State
    runs: tuple[Run, ...]
    reason: str = ""


_trial = TypeAdapter(Trial)  # written as the user attribute "trial" of Optuna's


class Study:
    """The trials of one search. Made by `opened`."""

    def __init__(self, study: optuna.Study, space: Space, seed: int) -> None:
        self.space = space
        self._study, self._seed = study, seed
        for frozen in study.get_trials(states=[TrialState.RUNNING]):  # its process was killed
            study.tell(frozen.number, state=TrialState.FAIL)
            study.enqueue_trial(frozen.params, skip_if_exists=False)
        if not self.trials and not study.get_trials(states=[TrialState.WAITING]):
            study.enqueue_trial(space.choice(space.old))

    @property
    def trials(self) -> list[Trial]:
        """All that are over, in order; the first is what is published."""
        over = self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE, TrialState.PRUNED])
        return [_trial.validate_json(frozen.user_attrs["trial"]) for frozen in over]

    @property
    def next_label(self) -> str:
        """The label of a trial that begins now."""
        return f"trial {number}" if (number := len(self.trials)) else PUBLISHED

    def ask(self) -> optuna.Trial | None:
        """The next settings that were not tried; None where only such are left."""
        tried = [trial.settings for trial in self.trials]
        for number in range(MAX_PROPOSALS):
            seed = self._seed + len(self._study.get_trials(deepcopy=False))  # a resumed search proposes other ones
            tpe = optuna.samplers.TPESampler(seed=seed, n_startup_trials=6, multivariate=True)
            self._study.sampler = optuna.samplers.RandomSampler(seed=seed) if number else tpe
            trial = self._study.ask()
            for dimension in self.space.dimensions:
                trial.suggest_categorical(dimension.name, list(dimension.options))
            if self.space.settings(trial.params) not in tried:
                return trial
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def keep(self, proposal: optuna.Trial, state: State, runs: tuple[Run, ...], reason: str = "") -> Trial:
        """Write down how a trial ended."""
        trial = Trial(self.next_label, self.space.settings(proposal.params), state, runs, reason)
        proposal.set_user_attr("trial", _trial.dump_json(trial).decode())
        if state == "complete":
            self._study.tell(proposal, score(runs).value)
        else:  # a pruned trial without a value is worse to the sampler than any other, as a failed one should be
            self._study.tell(proposal, state=TrialState.PRUNED)
        return trial


@contextmanager
def opened(path: Path, identity: Mapping[str, object], space: Space, seed: int, again: bool) -> Iterator[Study]:
    """The study of `identity` (all but the choices that makes trials comparable) in the file `path`, locked.

    A finished study begins anew unless `again`. Raises UsageError where another process has the file, or it
    is no study.
    """
    optuna.logging.set_verbosity(logging.WARNING)
    choices = {dimension.name: list(dimension.options) for dimension in space.dimensions}
    text = json.dumps({"identity": identity, "choices": choices}, sort_keys=True)
    with _locked(path):
        study = _study(path, hashlib.sha256(text.encode()).hexdigest()[:16], again)
        yield Study(study, space, seed)
        study.set_user_attr("done", True)  # not after an interrupt or an error


def _locked(path: Path) -> AbstractContextManager[object]:
    """The lock beside the file, held; the kernel drops it when its holder dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path.with_name(f"{path.name}.lock")).acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"Another hfx tune is at work with {path}.", "Two at a time would disturb each other."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.", "Give another --study.") from error


def _study(path: Path, name: str, again: bool) -> optuna.Study:
    import sqlalchemy

    url = sqlalchemy.URL.create("sqlite", database=str(path)).render_as_string()
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
    try:
        storage = optuna.storages.RDBStorage(url)
        known = {each.study_name: each for each in optuna.get_all_study_summaries(storage)}
        if name in known and known[name].user_attrs.get("done") and not again:
            optuna.delete_study(study_name=name, storage=storage)
        study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", pruner=pruner, load_if_exists=True
        )
        study.set_user_attr("done", False)
    except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is not a study that can be used: {reason}.", "Give another --study.") from error
    return study
