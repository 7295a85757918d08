"""`hfx infer`: texts in, answers out, through a server or in this process.

Turns words of the command line into the tensors of the model's task, and its output tensors into plain values. It must
not know how a request travels or how a model computes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hfx import names
from hfx.cli.answers import answer_lines, plain_values
from hfx.cli.output import Reporter, reporter
from hfx.errors import HfxError, UsageError
from hfx.names import GENERATION_TASKS, Task

if TYPE_CHECKING:
    from hfx.cli.asking import Model, Request
    from hfx.client.inputs import Value

DEFAULT_URL = "127.0.0.1:8001"
STANDARD_INPUT = "-"


class EarlyStopping(StrEnum):
    """When a beam search is over."""

    TRUE = "true"
    FALSE = "false"
    NEVER = "never"


class Long(StrEnum):
    """What becomes of a text that is longer than the model reads."""

    ERROR = "error"
    TRUNCATE = "truncate"
    CHUNK = "chunk"


class Merge(StrEnum):
    """How the answers to a text's chunks become one."""

    CONCAT = "concat"
    RECURSIVE = "recursive"


@dataclass(frozen=True)
class Choices:
    """The options that only some tasks take, under the names of their tensors; None where the user gave none."""

    labels: list[str] | None = None
    context: str | None = None
    top_k: int | None = None
    multi_label: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    num_beams: int | None = None
    num_return_sequences: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop_words: list[str] | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    length_penalty: float | None = None
    early_stopping: str | None = None
    long: str | None = None
    merge: str | None = None
    overlap: int | None = None
    return_log_probs: bool | None = None


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
    top_k: Annotated[
        int | None, typer.Option(help="Classification: how many labels. Sampling: of how many tokens; 0 of all.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Generation: print the text as it comes.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Generation: new tokens at most.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Generation: new tokens at least.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="Beams to search with; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Beams: the higher, the longer texts.")] = None,
    early_stopping: Annotated[EarlyStopping | None, typer.Option(help="Beams: end with enough texts.")] = None,
    num_return_sequences: Annotated[int | None, typer.Option(help="Texts for each TEXT.")] = None,
    do_sample: Annotated[
        bool | None, typer.Option("--sample/--greedy", help="Draw tokens, or take the likeliest.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling: below 1 is safer, above 1 wilder.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sampling: from the likeliest with this share.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Sampling: least share of the likeliest's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling: the same seed gives the same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text to stop before; may be given several times.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: against tokens seen before.")] = None,
    no_repeat_ngram_size: Annotated[int | None, typer.Option(help="No sequence of so many tokens twice.")] = None,
    long: Annotated[Long | None, typer.Option(help="A text that is too long for the model.")] = None,
    merge: Annotated[Merge | None, typer.Option(help="Chunks: how their answers become one.")] = None,
    overlap: Annotated[int | None, typer.Option(help="Chunks: sentences that two share.")] = None,
    log_probs: Annotated[bool, typer.Option("--log-probs", help="Generation: the tokens' log-probabilities.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that an answer of a server may take.")] = 60.0,
) -> None:
    """Ask a model; each TEXT gets one answer, in order."""
    report = reporter(context)
    choices = Choices(
        labels=_split(labels),
        context=passage,
        top_k=top_k,
        multi_label=multi_label,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        num_beams=num_beams,
        num_return_sequences=num_return_sequences,
        do_sample=do_sample,
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop_words=stop or None,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        long=long,
        merge=merge,
        overlap=overlap,
        return_log_probs=log_probs or None,
    )
    if stream and report.json:
        raise UsageError("--stream and --json exclude each other.", "Leave one of them out.")
    with _model(name, url, local, repository, timeout) as model:
        requests = [request_of(model.task, text, choices) for text in _read(texts)]
        if stream:
            _stream(model, requests, report)
            return
        began = time.perf_counter()
        results = list(_answers(model, requests))
        latency = (time.perf_counter() - began) * 1000
    for index, result in enumerate(results):
        _warn_of_truncation(index, result.get(names.TRUNCATED_TOKENS), report)
    value = {"model": name, "results": results, "latency_ms": round(latency, 3)}
    report.result(value, [line for result in results for line in answer_lines(model.task, result)])


def request_of(task: Task, text: str, choices: Choices) -> Request:
    """The input tensors for TEXT as plain values; raises UsageError for an option that TASK does not take."""
    from hfx.client import inputs

    _refuse_foreign(task, choices)
    if task in GENERATION_TASKS:
        return {names.TEXT_INPUT: [inputs.check_text(text, "text")], **_settings(choices)}
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


# How an option is typed, and the tasks that take it; the others are generators' and typed as their tensors are named.
OPTIONS: dict[str, tuple[str, Collection[Task]]] = {
    "labels": ("--labels", {Task.ZERO_SHOT_CLASSIFICATION}),
    "multi_label": ("--multi-label", {Task.ZERO_SHOT_CLASSIFICATION}),
    "context": ("--context", {Task.QUESTION_ANSWERING}),
    "top_k": ("--top-k", {Task.TEXT_CLASSIFICATION, Task.ZERO_SHOT_CLASSIFICATION, *GENERATION_TASKS}),
    "do_sample": ("--sample", GENERATION_TASKS),
    "stop_words": ("--stop", GENERATION_TASKS),
    "return_log_probs": ("--log-probs", GENERATION_TASKS),
}


def _option(name: str) -> tuple[str, Collection[Task]]:
    return OPTIONS.get(name, (f"--{name.replace('_', '-')}", GENERATION_TASKS))


def _refuse_foreign(task: Task, choices: Choices) -> None:
    for field in fields(choices):
        option, tasks = _option(field.name)
        if getattr(choices, field.name) is not None and task not in tasks:
            raise UsageError(f"A {task} model does not take {option}.", f"Leave {option} out.")


def _settings(choices: Choices) -> dict[str, list[Value]]:
    """What was chosen of a generator's settings, under the names of its tensors."""
    found: dict[str, list[Value]] = {}
    for field in fields(choices):
        value = getattr(choices, field.name)
        if value is not None:
            found[field.name] = list(value) if isinstance(value, list) else [value]
    return found


def _stream(model: Model, requests: Sequence[Request], report: Reporter) -> None:
    """Print each answer as it comes, and a line's end behind it."""
    if model.stream is None:
        fix = "Add --local." if model.task in GENERATION_TASKS else "Leave --stream out."
        raise UsageError(f"This {model.task} model's answers can't be streamed.", fix)
    for index, request in enumerate(requests):
        if request.get(names.NUM_RETURN_SEQUENCES, [1]) != [1]:
            raise UsageError("--stream shows one text at a time.", "Leave --num-return-sequences out.")
        truncated = 0
        try:
            for piece in model.stream(request):
                report.piece(piece.text)
                truncated = piece.truncated_tokens
        except HfxError as error:
            raise _located(index, len(requests), error) from error
        finally:
            report.piece("\n")
        _warn_of_truncation(index, truncated, report)


def _warn_of_truncation(index: int, dropped: int | None, report: Reporter) -> None:
    if dropped:
        report.warn(f"Text {index + 1} is longer than the model reads: {dropped} tokens or more were left out.")


def _model(name: str, url: str, local: bool, repository: Path | None, timeout: float) -> AbstractContextManager[Model]:
    from hfx.cli import asking

    if not local:
        if repository is not None:
            raise UsageError("--repository is for --local.", "Add --local, or leave --repository out.")
        return asking.served(name, url or DEFAULT_URL, timeout)
    if url:
        raise UsageError("--url and --local exclude each other.", "Leave one of them out.")
    return asking.in_process(name, repository or Path("model_repository"))


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
