"""`hfx infer`: texts or JSON lines in, answers out, of a model behind a server or in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from hfx.cli import printing, reading
from hfx.cli.commands import grouped
from hfx.cli.completion import PublishedName
from hfx.cli.connection import Connection, connect, refuse_all
from hfx.cli.infer_options import EncoderOptions, GenerationOptions, request_of, settings
from hfx.cli.interrupts import deferred
from hfx.cli.output import Reporter, reporter
from hfx.cli.reading import STANDARD_INPUT, Entry
from hfx.errors import UsageError

if TYPE_CHECKING:
    from hfx.answering import Model


@dataclass(frozen=True)
class InputOptions:
    """What is read besides the words of the command line, and how answers are printed."""

    PANEL: ClassVar[str] = "Input and output"

    jsonl: Annotated[bool, typer.Option("--jsonl", help="JSON lines in and out, as above.")] = False
    input: Annotated[Path | None, typer.Option(help="Read lines of this file instead of the standard input.")] = None
    stream: Annotated[bool, typer.Option("--stream", help="Generation: print the text as it comes.")] = False


@dataclass(frozen=True)
class LocalOptions:
    """Where a model runs that is not behind a server."""

    PANEL: ClassVar[str] = "In this process"

    local: Annotated[bool, typer.Option("--local", help="Run in this process, without a server.")] = False
    repository: Annotated[Path | None, typer.Option(help="Where --local finds the model.")] = None


@grouped
def command(
    ctx: typer.Context,  # `context` is an option
    name: PublishedName,
    form: InputOptions,
    connection: Connection,
    place: LocalOptions,
    encoder: EncoderOptions,
    generation: GenerationOptions,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="The texts (questions, with --context); - reads lines.")
    ] = None,
) -> None:
    """Ask a model; each TEXT gets one answer, in order.

    With --jsonl, each line that is read is an object of the model's inputs, such as {"text_input": "Hi", "max_tokens":
    9}; options hold for lines that don't say otherwise. Each gives one line, in order and as soon as it is there: the
    model's outputs, or {"error": {...}}; an "id" is handed through. The exit code is that of the first line that
    failed. A whole file as one text: jq -Rs '{text_input: .}' FILE | hfx infer NAME --jsonl

    Examples:
      hfx infer sentiment "A fine film." "A dull one."
      cat reviews.txt | hfx infer sentiment
      hfx infer stories "Once upon a time" --stream --temperature 0.8 --seed 7
      hfx infer faq "Who wrote it?" --context "Ann wrote it." --local --json
    """
    report = reporter(ctx)
    _check(form, connection, report)
    entries = _entries(texts or [], form)
    with _model(name, connection, place) as model:
        chosen = settings(model.task, encoder, generation)
        request = partial(request_of, model.task, settings=chosen, model=model.metadata)
        if form.stream:
            if model.stream is None:
                raise UsageError(f"This {model.task} model's answers can't be streamed.", "Leave --stream out.")
            stream = model.stream
            printing.pieces(entries, lambda entry: stream(request(entry)), report)
            return
        with closing(model.answer_each(entries, request)) as outcomes:
            if form.jsonl:
                printing.rows(outcomes, report)
            elif report.json:
                printing.one_object(name, outcomes, report)
            else:
                printing.lines(model.task, outcomes, report)


def _check(form: InputOptions, connection: Connection, report: Reporter) -> None:
    """Raise UsageError for options that contradict each other, or would do nothing."""
    chosen = {"--stream": form.stream, "--json": report.json, "--jsonl": form.jsonl}
    outputs = [option for option, is_chosen in chosen.items() if is_chosen]
    if len(outputs) > 1:
        raise UsageError(f"{' and '.join(outputs)} exclude each other.", "Choose one of them.")
    if form.stream and connection.max_in_flight is not None:
        raise UsageError("--stream shows one text at a time.", "Leave --max-in-flight out.")
    if connection.idle_timeout is not None and not form.stream:
        raise UsageError("--idle-timeout is for --stream.", "Add --stream, or use --timeout.")


def _entries(texts: Sequence[str], form: InputOptions) -> Iterator[Entry]:
    """What is asked. Raises UsageError where it is nothing, or two things."""
    words = list(texts)
    if words not in ([], [STANDARD_INPUT]):
        if form.jsonl or form.input:
            raise UsageError("There are texts and lines to read.", "Leave out TEXT, or --jsonl and --input.")
        return reading.words(words)
    if not words and not form.jsonl and not form.input:
        raise UsageError("There is no text.", "Give one, or - for lines of the standard input, or --jsonl.")
    file = reading.opened(form.input or Path(STANDARD_INPUT))
    return reading.json_lines(file) if form.jsonl else reading.text_lines(file)


@contextmanager
def _model(name: str, connection: Connection, place: LocalOptions) -> Iterator[Model]:
    if place.local:
        refuse_all(replace(connection, timeout=None), "the model runs in this process")
        with deferred():
            from hfx.local.models import local_model
        with local_model(place.repository or Path("model_repository"), name, connection.timeout) as model:
            yield model
        return
    if place.repository is not None:
        raise UsageError("--repository is for --local.", "Add --local, or leave --repository out.")
    with connect(connection) as client:
        from hfx.client.served import served_model

        yield served_model(client, name)
