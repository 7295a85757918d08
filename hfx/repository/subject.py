"""The input and output of lint rules: the models of a repository with their configurations, read once, and findings.

Reading never raises because of the contents of a repository, as a damaged file is a finding.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from google.protobuf import text_format

from hfx.errors import RepositoryError
from hfx.manifest import FileProblem, Manifest, verify_files
from hfx.native.build import MACHINE
from hfx.releases import Release
from hfx.repository.catalog import Entry, model_folders, models
from hfx.repository.config_pbtxt import CONFIG, MAX_CONFIG_BYTES, VARIANTS, parse_config
from hfx.repository.onnx_facts import OnnxFacts, read_onnx
from hfx.strict_json import read_text

DEFAULT = ""

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class ConfigFile:
    """One configuration file: its text and message, or the error that prevented it from being read."""

    path: str
    text: str = ""
    message: Any = None
    error: str = ""
    error_line: int | None = None

    def line(self, *words: str) -> int | None:
        """Return the number of a line, found by searching for each of `words` in turn, from the line of the last match.

        Returns None if a word is not found.
        """
        number, lines = 0, self.text.splitlines()
        for word in words:
            pattern = re.compile(rf"(?<![\w]){re.escape(word)}(?![\w])")
            match = next((n for n in range(number, len(lines)) if pattern.search(lines[n].split("#")[0])), None)
            if match is None:
                return None
            number = match
        return number + 1 if words else None

    def problem(self, message: str, *words: str, fix: str = "") -> Problem:
        """Return a problem of this file, at `line(*words)`."""
        return Problem(self.path, message, self.line(*words), fix)

    def shape(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Return `dims` with the batch dimension, which the file leaves out, if the model batches."""
        return (*((-1,) if self.message.max_batch_size > 0 else ()), *dims)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield every declared tensor with its kind (input or output)."""
        for kind in ("input", "output"):
            yield from ((kind, tensor) for tensor in getattr(self.message, kind))


@dataclass(frozen=True)
class Model:
    """A model folder: its configurations by variant ("" is config.pbtxt) and its version folders."""

    name: str
    folder: Path
    configs: Mapping[str, ConfigFile]
    versions: tuple[Path, ...]


View = Mapping[str, ConfigFile]


@dataclass(frozen=True)
class Subject:
    """The repository under test, the Triton release that it is for, and the machine that serves it.

    `cores` are its CPU cores, and `machine` is its processor, as platform.machine() names it.
    """

    repository: Path
    release: Release
    cores: int
    models: Mapping[str, Model]
    entries: tuple[Entry, ...]
    machine: str
    _onnx: dict[Path, OnnxFacts] = field(default_factory=dict, repr=False)
    _files: dict[str, list[FileProblem]] = field(default_factory=dict, repr=False)

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """The names that --model-config-name can choose in this repository, and "" for no name."""
        return tuple(sorted({DEFAULT, *(name for model in self.models.values() for name in model.configs)}))

    @cached_property
    def views(self) -> tuple[View, ...]:
        """For each variant, the configuration that Triton would use for each model, if it can be parsed."""
        return tuple(
            {name: config for name, model in self.models.items() if (config := _served(model, variant))}
            for variant in self.variants
        )

    def parsed(self) -> Iterator[tuple[Model, str, ConfigFile]]:
        """Yield every configuration that can be parsed, with its model and variant."""
        for model in self.models.values():
            for variant, config in model.configs.items():
                if config.message is not None:
                    yield model, variant, config

    def relative(self, path: Path) -> str:
        """Return `path` relative to the repository, as findings name it."""
        return path.relative_to(self.repository).as_posix()

    def onnx(self, path: Path) -> OnnxFacts:
        """Return the facts of an ONNX file, which is read once."""
        if path not in self._onnx:
            self._onnx[path] = read_onnx(path)
        return self._onnx[path]

    def file_problems(self, manifest: Manifest) -> list[FileProblem]:
        """Return the differences between the files of a model and its manifest. The files are hashed once."""
        if manifest.name not in self._files:
            self._files[manifest.name] = verify_files(manifest, self.repository)
        return self._files[manifest.name]

    def manifest_of(self, model: Model) -> Manifest | None:
        """Return the manifest of the model of hfx that a folder belongs to."""
        manifests = (entry.manifest for entry in self.entries if entry.manifest)
        return next((manifest for manifest in manifests if model.name in manifest.folders), None)


def _served(model: Model, variant: str) -> ConfigFile | None:
    """Return the file that Triton reads with --model-config-name `variant`; None if it can't be parsed."""
    config = model.configs.get(variant) or model.configs.get(DEFAULT)
    return config if config and config.message is not None else None


def read_subject(repository: Path, release: Release, cores: int, machine: str = MACHINE) -> Subject:
    """Read every configuration. Raises RepositoryError if `repository` is not a folder."""
    folders = model_folders(repository)
    by_name = {folder.name: _model(repository, folder) for folder in folders}
    return Subject(repository, release, cores, by_name, tuple(models(repository)), machine)


def _model(repository: Path, folder: Path) -> Model:
    paths = {DEFAULT: folder / CONFIG} if os.path.lexists(folder / CONFIG) else {}
    paths |= {path.stem: path for path in sorted((folder / VARIANTS).glob("*.pbtxt"))}
    configs = {variant: _config(repository, path) for variant, path in paths.items()}
    numbered = [path for path in folder.glob("*") if re.fullmatch(r"[1-9][0-9]*", path.name, re.ASCII)]
    versions = tuple(sorted(path for path in numbered if path.is_dir()))
    return Model(folder.name, folder, configs, versions)


def _config(repository: Path, path: Path) -> ConfigFile:
    name = path.relative_to(repository).as_posix()
    text = ""
    try:
        text = read_text(Path(os.path.realpath(path)), MAX_CONFIG_BYTES)
        return ConfigFile(name, text, parse_config(text))
    except RepositoryError as error:
        cause = error.__cause__
        line = cause.GetLine() if isinstance(cause, text_format.ParseError) else None
        return ConfigFile(name, text, None, error.message, line)


# Rules and what they yield


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that a rule found: a path relative to the repository, and a line of the file if the problem is there.

    `fix` replaces the rule's own fix.
    """

    path: str
    message: str
    line: int | None = None
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with the id and severity of the rule that found it.

    An error stops a server or makes answers wrong.
    """

    rule: str
    severity: Severity
    path: str
    line: int | None
    message: str
    fix: str

    @property
    def place(self) -> str:
        """The path, with the number of the line if there is one."""
        return f"{self.path}:{self.line}" if self.line else self.path

    def lines(self) -> tuple[str, str, str]:
        """Return the lines that a person reads: the rule and the place, the message, the fix."""
        return f"{self.rule} {self.severity} {self.place}", f"    {self.message}", f"    {self.fix}"

    def __str__(self) -> str:
        return f"{self.place}: {self.rule} {self.message}"


Check = Callable[[Subject], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A lint rule. Its function `check` yields the problems in a subject, and has the rule's title as its docstring."""

    id: str
    severity: Severity
    fix: str
    check: Check

    @property
    def title(self) -> str:
        """A description of the problem that the rule finds."""
        return (self.check.__doc__ or "").rstrip(".")

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield the findings of the rule in `subject`."""
        for problem in self.check(subject):
            yield Finding(self.id, self.severity, problem.path, problem.line, problem.message, problem.fix or self.fix)


def rule(id: str, severity: Severity, fix: str = "") -> Callable[[Check], Rule]:
    """Return a decorator that makes a function the rule `id`. Its problems have `fix` unless they name another fix."""
    return lambda check: Rule(id, severity, fix, check)
