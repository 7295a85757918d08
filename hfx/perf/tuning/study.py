"""The trials of a search and their scores. They are kept in an Optuna study, an SQLite file that survives a kill."""

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

import hfx
from hfx.errors import UsageError
from hfx.perf.compare.cost import KEPT
from hfx.perf.results import Run
from hfx.perf.tuning.space import Settings, Space

LATE = 1e-4  # score lost for a second of p99 under an open load: decides among settings that all keep the SLO


@dataclass(frozen=True)
class Score:
    """`value`: higher is better; `kept`: enough requests kept the SLO; `run`: the run under the best load."""

    value: float
    kept: bool
    run: Run

    @property
    def figure(self) -> float:
        """The figure for the ratio of two scores under one load: `value`, or for an open load kept**2 / p99."""
        return self.run.kept**2 / p99(self.run) if self.run.load.kind == "open" else self.value


def score(runs: Sequence[Run]) -> Score:
    """The score of one trial: the best of its runs, which have a load each.

    A closed loop scores its tokens (or else its requests) a second; if it misses the SLO, that is multiplied by the
    squared share of requests that keep it. The rate of an open load is fixed, so it scores the share of requests that
    keep the SLO, and then the latency.
    """
    return max((_score(run) for run in runs), key=lambda each: (each.kept, each.value))


def rate(run: Run) -> float:
    """Tokens a second of a generator's run, else requests a second."""
    return run.tokens_per_second or run.throughput


def p99(run: Run) -> float:
    """The p99 latency in ms; infinite if nothing was answered."""
    return run.latency.p99 if run.latency else float("inf")


def _score(run: Run) -> Score:
    good = run.kept
    if run.load.kind == "open":
        return Score(round(min(good, KEPT), 2) - LATE * min(p99(run), 6e4) / 1e3, good >= KEPT, run)
    return Score(rate(run) if good >= KEPT else rate(run) * good**2, good >= KEPT, run)


State = Literal["complete", "pruned", "failed"]
PUBLISHED = "published"  # the label of the published settings
FACTOR = 3  # of successive halving: one trial in so many gets its next, longer measurement
MAX_PROPOSALS = 100  # after so many known proposals in a row, the search is over


@dataclass(frozen=True)
class Trial:
    """Settings that were measured. `runs` are from its longest measurement, one for each load.

    `state`: complete, pruned (ended early, as others were better), or failed for `reason`.
    """

    label: str
    settings: Settings
    state: State
    runs: tuple[Run, ...]
    reason: str = ""


_trial = TypeAdapter(Trial)  # stored as JSON in the attribute "trial" of Optuna's trial


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
        """All finished trials in order. The first is that of the published settings."""
        over = self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE, TrialState.PRUNED])
        return [_trial.validate_json(frozen.user_attrs["trial"]) for frozen in over]

    @property
    def next_label(self) -> str:
        """The label of the next trial."""
        return f"trial {number}" if (number := len(self.trials)) else PUBLISHED

    def ask(self) -> optuna.Trial | None:
        """Settings that were not tried yet; None if there seem to be no more."""
        tried = [trial.settings for trial in self.trials]
        for number in range(MAX_PROPOSALS):
            seed = self._seed + len(self._study.get_trials(deepcopy=False))  # a resumed search proposes others
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
        """Store the outcome of a proposal, and return it as a trial."""
        trial = Trial(self.next_label, self.space.settings(proposal.params), state, runs, reason)
        proposal.set_user_attr("trial", _trial.dump_json(trial).decode())
        if state == "complete":
            self._study.tell(proposal, score(runs).value)
        else:  # Optuna ranks a pruned trial without a value last, which suits a failed one too
            self._study.tell(proposal, state=TrialState.PRUNED)
        return trial


@contextmanager
def opened(path: Path, identity: Mapping[str, object], space: Space, seed: int, again: bool) -> Iterator[Study]:
    """The study of `identity` (see tune.identity) and this version in the file `path`, which stays locked meanwhile.

    A finished study is deleted and begun anew, unless `again`. Raises UsageError if another process has the file, or
    it is no study.
    """
    optuna.logging.set_verbosity(logging.WARNING)
    choices = {dimension.name: list(dimension.options) for dimension in space.dimensions}
    text = json.dumps({"hfx": hfx.__version__, "identity": identity, "choices": choices}, sort_keys=True)
    with _locked(path):
        study = _study(path, hashlib.sha256(text.encode()).hexdigest()[:16], again)
        yield Study(study, space, seed)
        study.set_user_attr("done", True)  # not after an interrupt or an error


def _locked(path: Path) -> AbstractContextManager[object]:
    """The held lock of the file. The kernel releases it if the process dies."""
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
        reason = str(error).partition("\n")[0]
        raise UsageError(f"{path} is not a study that can be used: {reason}.", "Give another --study.") from error
    return study
