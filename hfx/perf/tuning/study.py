"""The trials of a search on disk: an Optuna study in an SQLite file, which a kill leaves as it was.

Owns the file, the study's identity (the same model, load and choices: its trials count again) and what is kept of a
trial. It must not know how a trial is measured or when a search ends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optuna
from filelock import FileLock, Timeout
from optuna.trial import TrialState
from pydantic import TypeAdapter

from hfx.errors import UsageError
from hfx.perf.results import Run
from hfx.perf.tuning.pace import FACTOR
from hfx.perf.tuning.score import score
from hfx.perf.tuning.space import Settings, Space

State = Literal["complete", "pruned", "failed"]
PUBLISHED = "published"  # the label of the settings as they were found
DONE = "done"  # noted when the search came to its end
RUNS, STATE, REASON = "runs", "state", "reason"
_runs = TypeAdapter(tuple[Run, ...])


@dataclass(frozen=True)
class Trial:
    """Settings that were tried. `runs` are those of its longest measurement, one for each load.

    complete: measured in full length; pruned: given up early, as others were better; failed: `reason` says why.
    """

    label: str
    settings: Settings
    state: State
    runs: tuple[Run, ...]
    reason: str = ""


def label(number: int, settings: Settings, space: Space) -> str:
    """What a trial is called in results."""
    return PUBLISHED if settings == space.old else f"trial {number}"


class Study:
    """The trials of one search. Made by `opened`."""

    def __init__(self, study: optuna.Study, space: Space, seed: int) -> None:
        self._study = study
        self.space = space
        self._seed = seed + len(study.get_trials(deepcopy=False))  # a resumed search does not propose the same again
        self._known: dict[str, Trial] = {}
        for frozen in study.get_trials(deepcopy=False):
            if frozen.state is TrialState.RUNNING:  # its process was killed
                study.tell(frozen.number, state=TrialState.FAIL)
                study.enqueue_trial(frozen.params, skip_if_exists=False)
            elif STATE in frozen.user_attrs:
                self._known[_key(frozen.params)] = self._kept(frozen)
        if not self.has(space.old) and not study.get_trials(states=[TrialState.WAITING]):
            study.enqueue_trial(space.choice(space.old))

    @property
    def trials(self) -> list[Trial]:
        """All that are over, in order."""
        return list(self._known.values())

    @property
    def old(self) -> Trial | None:
        """The trial of what is published."""
        return self._known.get(_key(self.space.choice(self.space.old)))

    def next_label(self, settings: Settings) -> str:
        """What a trial that begins now is called in results."""
        return label(len(self._known), settings, self.space)

    def has(self, settings: Settings) -> bool:
        """Whether SETTINGS were tried."""
        return _key(self.space.choice(settings)) in self._known

    def ask(self, at_random: bool) -> optuna.Trial | None:
        """The next proposal, AT_RANDOM or the sampler's; None for one that was tried."""
        samplers = optuna.samplers
        self._study.sampler = (
            samplers.RandomSampler(seed=self._next_seed())
            if at_random
            else samplers.TPESampler(seed=self._next_seed(), n_startup_trials=6, multivariate=True)
        )
        trial = self._study.ask()
        for dimension in self.space.dimensions:
            trial.suggest_categorical(dimension.name, list(dimension.options))
        if _key(trial.params) not in self._known:
            return trial
        self._study.tell(trial, state=TrialState.FAIL)
        return None

    def keep(self, trial: optuna.Trial, state: State, runs: Sequence[Run], reason: str = "") -> Trial:
        """Write down how a trial ended."""
        trial.set_user_attr(RUNS, _runs.dump_json(tuple(runs)).decode())
        trial.set_user_attr(REASON, reason)
        trial.set_user_attr(STATE, state)
        if state == "complete":
            self._study.tell(trial, score(runs).value)
        else:  # without a value a pruned trial is worse to the sampler than any other: as a failed one should be
            self._study.tell(trial, state=TrialState.PRUNED)
        settings = self.space.settings(trial.params)
        made = Trial(self.next_label(settings), settings, state, tuple(runs), reason)
        self._known[_key(trial.params)] = made
        return made

    def note(self, name: str, value: float | bool) -> None:
        """Keep a figure of the search itself."""
        self._study.set_user_attr(name, value)

    def noted(self, name: str) -> Any:
        """A figure that was kept, or None."""
        return self._study.user_attrs.get(name)

    def _kept(self, frozen: optuna.trial.FrozenTrial) -> Trial:
        kept, settings = frozen.user_attrs, self.space.settings(frozen.params)
        runs = _runs.validate_json(kept[RUNS])
        return Trial(self.next_label(settings), settings, kept[STATE], runs, kept[REASON])

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed


@contextmanager
def opened(path: Path, identity: Mapping[str, object], space: Space, seed: int, again: bool) -> Iterator[Study]:
    """The study of IDENTITY in the file PATH, kept by this process alone. AGAIN: go on with a finished one, too.

    Raises UsageError where another process has the file, or it is none of ours.
    """
    optuna.logging.set_verbosity(logging.WARNING)
    lock = _locked(path)
    try:
        yield Study(_open(path, _name(identity, space), again), space, seed)
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
            f"Another hfx tune is at work with {path}.", "Wait for it: two at a time would disturb each other."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.", "Give another --study.") from error
    return lock


def _open(path: Path, name: str, again: bool) -> optuna.Study:
    import sqlalchemy

    try:
        storage = _storage(path)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
        create = partial(optuna.create_study, storage=storage, study_name=name, direction="maximize", pruner=pruner)
        made = create(load_if_exists=True)
        if made.user_attrs.get(DONE) and not again:
            optuna.delete_study(study_name=name, storage=storage)
            made = create()
        made.set_user_attr(DONE, False)
    except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is no study that can be used: {reason}.", "Give another --study.") from error
    return made


def _storage(path: Path) -> optuna.storages.RDBStorage:
    """The file, written without waiting for the disk: a trial has many small writes, and a kill loses none."""
    import sqlalchemy

    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA journal_mode=WAL")
    storage = optuna.storages.RDBStorage(sqlalchemy.URL.create("sqlite", database=str(path)).render_as_string())
    storage.engine.dispose()  # the connections that were opened before somebody listens
    sqlalchemy.event.listen(
        storage.engine, "connect", lambda file, record: file.execute("PRAGMA synchronous=NORMAL").close()
    )
    return storage


def _name(identity: Mapping[str, object], space: Space) -> str:
    """Studies are told apart by all that makes their trials comparable."""
    choices = {dimension.name: list(dimension.options) for dimension in space.dimensions}
    text = json.dumps([identity, choices], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _key(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True)
