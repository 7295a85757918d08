"""Rules about models of the Python backend."""

from __future__ import annotations

import ast
import functools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from hfx.errors import RepositoryError
from hfx.names import PACKAGES_FOLDER
from hfx.repository.rules.files import backend_of
from hfx.repository.subject import Problem, Subject, rule
from hfx.strict_json import read_json, read_text

MODEL_FILE = "model.py"
SOURCE_BYTES = 4 << 20
KEPT_CHARACTERS = 1 << 16  # the largest file whose result is cached, so that it is parsed once for all models
CPU_RUNTIME = "cpu_runtime"  # the parameter of a generator's engine
ENGINE_FILE = "cpu/engine.json"
ENGINE_BYTES = 1 << 20


@rule("HFX701", "error", "Put the model's Python file there.")
def missing_model(subject: Subject) -> Iterator[Problem]:
    """A Python model without its file."""
    for model, _, config in subject.parsed():
        if backend_of(config) == "python":
            name = config.message.default_model_filename or MODEL_FILE
            for version in model.versions:
                if not (version / name).exists():
                    yield Problem(f"{subject.relative(version)}/{name}", "is missing.")


@rule("HFX702", "error")
def does_not_compile(subject: Subject) -> Iterator[Problem]:
    """A Python file does not compile."""
    fix = f"Correct it for Python {subject.release.python or 3}."
    python = [model for model, _, config in subject.parsed() if backend_of(config) == "python"]
    for version in sorted({version for model in python for version in model.versions}):
        for path in sorted(version.rglob("*.py")):
            if PACKAGES_FOLDER in path.relative_to(version).parts:
                continue  # files of wheels, which are for the Python that their names state
            if problem := _syntax_problem(path, subject.release.python):
                yield Problem(subject.relative(path), *problem, fix)


@rule("HFX703", "error")
def missing_runtime(subject: Subject) -> Iterator[Problem]:
    """A CPU runtime that a generator has no files for."""
    for model, _, config in subject.parsed():
        if CPU_RUNTIME not in config.message.parameters:
            continue
        runtime = config.message.parameters[CPU_RUNTIME].string_value
        for version in model.versions:
            built = _runtimes(version / ENGINE_FILE)
            if built and runtime not in built:
                folder = f"{subject.relative(version)}/cpu"
                message = f"{CPU_RUNTIME} is {runtime!r}, but {folder} is for {' or '.join(built)}."
                line = config.line(CPU_RUNTIME, runtime) or config.line(CPU_RUNTIME)
                fix = f"Set it to {built[-1]}, or export the model again."
                yield Problem(config.path, message, line, fix)


def _runtimes(path: Path) -> tuple[str, ...]:
    """Return the runtimes that an engine's folder has files for.

    The result is empty if ENGINE_FILE can't be read, which other rules and the server report.
    """
    try:
        facts = dict(read_json(path, ENGINE_BYTES).items())
    except RepositoryError:
        return ()
    # Models of earlier versions may have files for OpenVINO; they run on those for ONNX Runtime.
    files = {"openvino": facts.get("openvino"), "native": facts.get("operators")}
    return (*(name for name, member in files.items() if member and member.value), "onnxruntime")


def _syntax_problem(path: Path, python: str | None) -> tuple[str, int | None] | None:
    try:
        text = read_text(Path(os.path.realpath(path)), SOURCE_BYTES)
        parse = _problem_of if len(text) <= KEPT_CHARACTERS else _problem_of.__wrapped__
        return parse(text, python or "3.12")
    except RepositoryError as error:
        return error.message, None


@functools.lru_cache(128)  # each model has copies of the same files
def _problem_of(text: str, python: str) -> tuple[str, int | None] | None:
    major, minor = python.split(".")
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes and the like are not this rule's subject
            ast.parse(text, feature_version=(int(major), int(minor)))
    except SyntaxError as error:
        return f"does not compile: {error.msg}.", error.lineno
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; expressions nested too deeply
        return f"does not compile: {str(error) or type(error).__name__}.", None
    return None
