"""Candidates of a comparison: models served by a Triton of their own, or by running servers."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from hfx.errors import HfxError, RepositoryError, ServerError, UsageError
from hfx.manifest import Manifest
from hfx.perf.load import Plan
from hfx.perf.machine import local_gpus
from hfx.perf.measuring import MeasureSpec, Target, Watch, measure, server_target
from hfx.perf.results import Run, Scalar
from hfx.repository.catalog import model
from hfx.repository.edit import Edit, changed_copy
from hfx.repository.lint import check_rules
from hfx.triton import EmbeddedServer

PRECISIONS = ("fp32", "fp16", "int8", "int4")
SERVER_BYTES = 512 << 20  # memory of a Triton with its Python processes, without weights
WEIGHTS_FACTOR = 2.0  # a runtime that repacks weights holds them twice while it loads


@dataclass(frozen=True)
class CompareSpec:
    """A comparison of the model `name`. `kind` is one of kinds.KINDS, and `values` are the values of its option."""

    name: str
    kind: str
    values: tuple[str, ...]
    repository: Path = Path("model_repository")
    device: str = "cpu"
    checkpoint: str = ""
    max_drop: float | None = None

    def __post_init__(self) -> None:
        for option, value, kinds in (
            ("--checkpoint", self.checkpoint, ("precisions",)),
            ("--max-drop", self.max_drop, ("precisions",)),
            ("--device", self.device != "cpu", ("precisions", "variants")),
        ):
            if value and self.kind not in kinds:
                known = " and ".join(f"--{kind}" for kind in kinds)
                raise UsageError(f"{option} is about {known}.", f"Leave it out of --{self.kind}.")

    @property
    def title(self) -> str:
        """The title of the result."""
        return f"{self.name}: {self.kind} {' '.join(self.values)}"


@dataclass(frozen=True)
class Case:
    """A load under which every candidate is measured. `name` distinguishes cases with equal loads."""

    plan: Plan
    spec: MeasureSpec
    name: str = ""

    @property
    def load_label(self) -> str:
        """The name of the load in tables and notes."""
        return self.plan.load("", "", self.name).label


@dataclass(frozen=True)
class Session:
    """Callbacks that all measurements of a command share.

    `show` announces a measurement by its title, and returns the callback for its progress. `say` prints other steps.
    Setting `stop` ends everything early.
    """

    show: Callable[[str], Watch] = lambda title: lambda progress: None
    say: Callable[[str], None] = lambda line: None
    stop: threading.Event = field(default_factory=threading.Event)


Measure = Callable[[Case, int], Run]  # (case, number of the round from 0) -> Run


@dataclass(frozen=True)
class Candidate:
    """A candidate.

    `opened` returns a context manager that serves the candidate and yields the function that measures it.

    `memory` is an estimate of the bytes that serving needs; 0 for a server that is already running.
    """

    label: str
    opened: Callable[[Session], AbstractContextManager[Measure]]
    memory: int = 0


def served(
    label: str, repository: Path, name: str, device: str = "cpu", settings: Mapping[str, Scalar] | None = None
) -> Candidate:
    """Return the published model `name` as a candidate with a Triton of its own.

    Raises ModelMissing and ModelCorrupt.
    """
    manifest = model(repository, name)

    @contextmanager
    def opened(session: Session) -> Iterator[Measure]:
        precision = precision_on(manifest, device)
        if precision is None:
            raise RepositoryError(f"{name} was not built for {device.upper()}", "Export it with --device both.")
        if device == "gpu" and not local_gpus():
            raise ServerError("this machine has no GPU that nvidia-smi knows of", "Measure it on one that has.")
        session.say(f"Starting {label}")
        with EmbeddedServer(repository, device=device, models=[name]) as server:
            target = replace(server_target(server, name, precision), task=str(manifest.task))
            yield _measuring(target, label, settings or {}, session)

    return Candidate(label, opened, memory_needed(manifest, device))


def changed(
    label: str,
    repository: Path,
    name: str,
    edits: Sequence[Edit],
    copy: Path,
    made_by: str,
    device: str,
    settings: Mapping[str, Scalar],
) -> Candidate:
    """Return the model `name`, changed by `edits`, as a candidate. It is served from the folder `copy`.

    The folder is deleted with the server. Opening the candidate raises LintFailed if the changed model breaks a lint
    rule.
    """

    @contextmanager
    def opened(session: Session) -> Iterator[Measure]:
        try:
            manifest = changed_copy(repository, name, edits, copy, made_by)
            check_rules(copy, manifest.triton.minimum, "Choose other values.")
            with served(label, copy, name, device, settings).opened(session) as measured:
                yield measured
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    return Candidate(label, opened, memory_needed(model(repository, name), device))


def running(label: str, target: Target) -> Candidate:
    """Return a model on a running server, on this machine or another, as a candidate."""
    return Candidate(label, lambda session: nullcontext(_measuring(target, label, {}, session)))


def one_line(error: HfxError) -> str:
    """Return the message of an error as one line, for a note."""
    return " ".join(error.message.split())


def precision_on(manifest: Manifest, device: str) -> str | None:
    """Return the precision of the model's files for `device`; None if the model was not built for it."""
    return manifest.precision.gpu if device == "gpu" else manifest.precision.cpu


def memory_needed(manifest: Manifest, device: str) -> int:
    """Estimate the bytes that a server of the model needs, without the files for the other device."""
    other = "gpu" if device == "cpu" else "cpu"
    half = device == "cpu" and manifest.precision.cpu != "fp16"
    loaded = (
        entry.size
        for path, entry in manifest.files.items()
        if f"/{other}/" not in path and not (half and ".fp16." in path)
    )
    return SERVER_BYTES + round(WEIGHTS_FACTOR * sum(loaded))


def _measuring(target: Target, label: str, settings: Mapping[str, Scalar], session: Session) -> Measure:
    def measured(case: Case, number: int) -> Run:
        watch = session.show(f"{label}, {case.load_label}, round {number + 1}")
        return measure(
            target,
            case.plan,
            case.spec,
            label=label,
            round=number,
            case=case.name,
            settings=settings,
            watch=watch,
            stop=session.stop,
        )

    return measured
