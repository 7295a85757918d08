"""`hfx infer`: texts in, answers out, through a server or in this process.

Turns words of the command line into the tensors of the model's task, and its output tensors into plain values. It must
not know how a request travels or how a model computes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hfx.cli.answers import answer_lines, plain_values
from hfx.cli.output import reporter
from hfx.errors import HfxError, UsageError
from hfx.names import Task

if TYPE_CHECKING:
    from hfx.client.inputs import Value

DEFAULT_URL = "127.0.0.1:8001"
STANDARD_INPUT = "-"

Request = dict[str, list["Value"]]
Outcome = dict[str, Any] | HfxError


@dataclass(frozen=True)
class Choices:
    """The options that only some tasks take; None where the user gave none."""

    labels: list[str] | None
    context: str | None
    top_k: int | None
    multi_label: bool | None


@dataclass(frozen=True)
class Model:
    """A model that can be asked, wherever it runs."""

    task: Task
    ask: Callable[[Sequence[Request]], Iterator[Outcome]]


def command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The published model.")],
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT", help="The texts (questions, with --context); - reads lines.")
    ],
    url: Annotated[str, typer.Option(help=f"gRPC address of the server (default {DEFAULT_URL}).")] = "",
    local: Annotated[bool, typer.Option("--local", help="Run in this process, without a server.")] = False,
    repository: Annotated[Path | None, typer.Option(help="Where --local finds the model.")] = None,
    labels: Annotated[str | None, typer.Option(help="Zero-shot: the candidate labels, A,B.")] = None,
    multi_label: Annotated[
        bool | None, typer.Option("--multi-label/--single-label", help="Zero-shot: judge each label by itself.")
    ] = None,
    passage: Annotated[str | None, typer.Option("--context", help="Question answering: where the answer is.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Classification: how many labels.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that an answer may take.")] = 60.0,
) -> None:
    """Ask a model; each TEXT gets one answer, in order."""
    report = reporter(context)
    choices = Choices(_split(labels), passage, top_k, multi_label)
    with _model(name, url, local, repository, timeout) as model:
        requests = [request_of(model.task, text, choices) for text in _read(texts)]
        began = time.perf_counter()
        results = list(_answers(model, requests))
        latency = (time.perf_counter() - began) * 1000
    for index, result in enumerate(results):
        if dropped := result.get("truncated_tokens"):
            report.warn(f"Text {index + 1} is longer than the model reads: {dropped} tokens or more were left out.")
    value = {"model": name, "results": results, "latency_ms": round(latency, 3)}
    report.result(value, [line for result in results for line in answer_lines(model.task, result)])


def request_of(task: Task, text: str, choices: Choices) -> Request:
    """The input tensors for TEXT as plain values; raises UsageError for an option that TASK does not take."""
    from hfx.client import inputs

    _refuse_foreign(task, choices)
    if task is Task.QUESTION_ANSWERING:
        if choices.context is None:
            raise UsageError("This model answers questions about a text.", "Give the text with --context.")
        return inputs.question_values(text, choices.context)
    if task is Task.ZERO_SHOT_CLASSIFICATION:
        if choices.labels is None:
            raise UsageError("This model sorts texts by labels that you choose.", "Give them with --labels A,B.")
        return inputs.zero_shot_values(text, choices.labels, choices.top_k, choices.multi_label)
    if task is Task.TEXT_CLASSIFICATION:
        return inputs.classification_values(text, choices.top_k)
    return inputs.text_values(text)


OPTIONS = {
    "labels": ("--labels", {Task.ZERO_SHOT_CLASSIFICATION}),
    "multi_label": ("--multi-label", {Task.ZERO_SHOT_CLASSIFICATION}),
    "context": ("--context", {Task.QUESTION_ANSWERING}),
    "top_k": ("--top-k", {Task.TEXT_CLASSIFICATION, Task.ZERO_SHOT_CLASSIFICATION}),
}


def _refuse_foreign(task: Task, choices: Choices) -> None:
    for name, (option, tasks) in OPTIONS.items():
        if getattr(choices, name) is not None and task not in tasks:
            raise UsageError(f"A {task} model does not take {option}.", f"Leave {option} out.")


@contextmanager
def _model(name: str, url: str, local: bool, repository: Path | None, timeout: float) -> Iterator[Model]:
    if not local:
        if repository is not None:
            raise UsageError("--repository is for --local.", "Add --local, or leave --repository out.")
        with _served(name, url or DEFAULT_URL, timeout) as model:
            yield model
        return
    if url:
        raise UsageError("--url and --local exclude each other.", "Leave one of them out.")
    yield _in_process(name, repository or Path("model_repository"))


@contextmanager
def _served(name: str, url: str, timeout: float) -> Iterator[Model]:
    from hfx.client import Client
    from hfx.client.tasks import task_of

    with Client(url, timeout=timeout) as client:
        task = task_of(client.metadata(name))

        def ask(requests: Sequence[Request]) -> Iterator[Outcome]:
            for outcome in client.infer_each(name, requests):
                yield outcome if isinstance(outcome, HfxError) else {key: value[0] for key, value in outcome.items()}

        yield Model(task, ask)


def _in_process(name: str, repository: Path) -> Model:
    from hfx.local import LocalModel
    from hfx.repository.catalog import model as manifest_of

    task = manifest_of(repository, name).task
    opened = LocalModel.open(repository, name)

    def ask(requests: Sequence[Request]) -> Iterator[Outcome]:
        for request in requests:
            try:
                yield opened.infer({key: values if _is_text(values) else values[0] for key, values in request.items()})
            except HfxError as error:
                yield error

    return Model(task, ask)


def _is_text(values: Sequence[Value]) -> bool:
    return isinstance(values[0], str)


def _located(index: int, count: int, error: HfxError) -> HfxError:
    return type(error)(f"Text {index + 1}: {error.message}" if count > 1 else error.message, error.fix)


def _answers(model: Model, requests: Sequence[Request]) -> Iterator[dict[str, Any]]:
    for index, outcome in enumerate(model.ask(requests)):
        if isinstance(outcome, HfxError):
            raise _located(index, len(requests), outcome) from outcome
        yield plain_values(outcome)


def _split(labels: str | None) -> list[str] | None:
    return None if labels is None else [label.strip() for label in labels.split(",") if label.strip()]


def _read(texts: Sequence[str]) -> list[str]:
    if list(texts) != [STANDARD_INPUT]:
        return list(texts)
    return [_decode(line, number) for number, line in enumerate(sys.stdin.buffer, 1)]


def _decode(line: bytes, number: int) -> str:
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"Line {number} of the standard input is not UTF-8 (byte {error.start}).",
            "Convert it first, e.g. by iconv.",
        ) from None
