"""The trials of a search on disk: an Optuna study in an SQLite file, which survives a kill."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import optuna
from filelock import FileLock, Timeout
from optuna.trial import TrialState
from pydantic import TypeAdapter

from hfx.errors import UsageError
from hfx.perf.results import Run
from hfx.perf.tuning.score import score
from hfx.perf.tuning.space import Settings, Space

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
    lock = _locked(path)
    try:
        study = _study(path, _name(identity, space), again)
        yield Study(study, space, seed)
        study.set_user_attr("done", True)  # not after an interrupt or an error
    finally:
        lock.release()


def _locked(path: Path) -> FileLock:
    """The lock beside the file, held; the kernel drops it when its holder dies."""
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"Another hfx tune is at work with {path}.", "Two at a time would disturb each other."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.", "Give another --study.") from error
    return lock


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
        raise UsageError(f"{path} is no study that can be used: {reason}.", "Give another --study.") from error
    return study


def _name(identity: Mapping[str, object], space: Space) -> str:
    choices = {dimension.name: list(dimension.options) for dimension in space.dimensions}
    text = json.dumps({"identity": identity, "choices": choices}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
