"""`hfx infer`: answers texts or JSON lines, with a served model or with a model in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from hfx import names
from hfx.cli import printing, reading
from hfx.cli.commands import given, grouped
from hfx.cli.connection import DEFAULT_REPOSITORY, Connection, PublishedName, connect, refuse_all
from hfx.cli.infer_options import EncoderOptions, GenerationOptions, request_of, settings
from hfx.cli.interrupts import deferred
from hfx.cli.output import Reporter, reporter
from hfx.cli.reading import STANDARD_INPUT, Entry
from hfx.errors import UsageError
from hfx.metadata import TensorMetadata
from hfx.names import LOG_PROBS, TOP_K, Task
from hfx.options import option
from hfx.python_backends.settings import DOCUMENT, QUERY
from hfx.tasks import TASKS, is_late

if TYPE_CHECKING:
    from hfx.answering import Answer, Model, Request

NO_TEXT = UsageError("There is no text.", "Give one, pipe lines in, or name a file with --input.")
QUERIES = 64  # queries whose vectors are cached: successive lines usually have the same query


@dataclass(frozen=True)
class InputOptions:
    """The options of input and output."""

    PANEL: ClassVar[str] = "Input and output"

    jsonl: bool = option(False, "Read and write JSON lines, as described above.")
    input: Path | None = option(None, "Read lines from this file instead of standard input.", metavar="FILE")
    stream: bool = option(False, "Generation: print the text as it is generated. With --json: as JSON lines.")


@dataclass(frozen=True)
class LocalOptions:
    """The options of a model that runs in this process."""

    PANEL: ClassVar[str] = "In this process"

    local: bool = option(False, "Run the model in this process, without a server.")
    repository: Path | None = option(None, "With --local: model repository. Default: model_repository.", metavar="DIR")


@grouped
def command(
    ctx: typer.Context,  # `context` is an option
    name: PublishedName,
    source: InputOptions,
    connection: Connection,
    place: LocalOptions,
    encoder: EncoderOptions,
    generation: GenerationOptions,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="Texts (with --context: questions). Default, or -: lines from standard input.",
        ),
    ] = None,
) -> None:
    """Query a model. Each TEXT gets one answer, in order.

    With --json, a classifier's label and score are single values. With --top-k they are lists.

    With --jsonl, each input line is an object of the model's inputs, such as {"text_input": "Hi", "max_tokens": 9}.
    Values in a line override options. Each line gets one output line, in order and as soon as it is ready: the
    model's outputs or {"error": {...}}, with the "id" of the input line, if any. The exit code is that of the first
    line that failed.

    Examples:
      hfx infer sentiment "A fine film." "A dull one."
      cat reviews.txt | hfx infer sentiment
      hfx infer stories "Once upon a time" --stream --temperature 0.8 --seed 7
      jq -Rs '{text_input: .}' report.txt | hfx infer summaries --jsonl
      hfx infer faq "Who wrote it?" --context "Ann wrote it." --local --json
    """
    report = reporter(ctx)
    _check(source, connection, report)
    _check_log_probs(source, generation, report)
    entries = _entries(texts or [], source)
    with _model(name, connection, place) as model:
        if encoder.query is not None and is_late(model.metadata):
            model = _ranker(model)
        chosen = settings(model.task, encoder, generation)
        request = partial(request_of, model.task, settings=chosen, model=model.metadata)
        if source.stream:
            if model.stream is None:
                raise UsageError(f"This {model.task} model's answers can't be streamed.", "Leave --stream out.")
            stream = model.stream
            printing.pieces(model.task, entries, lambda entry: stream(request(entry)), report)
            return
        with closing(model.answer_each(entries, request)) as outcomes:
            plain = printing.single_values(outcomes, partial(_is_single, model.task, chosen))
            if source.jsonl:
                printing.rows(plain, report)
            elif report.json:
                printing.one_object(name, model.task, plain, report)
            else:
                printing.lines(model.task, outcomes, report)


def _is_single(task: Task, chosen: Request, entry: Entry) -> bool:
    """Return whether an entry gets a single label: the best label of a classifier, unless `top_k` is given."""
    own = entry.content if isinstance(entry.content, dict) else {}
    return task is Task.TEXT_CLASSIFICATION and TOP_K not in chosen and own.get(TOP_K) is None


def _check(source: InputOptions, connection: Connection, report: Reporter) -> None:
    """Raise UsageError for options that contradict each other or would have no effect."""
    for name, is_chosen in {"--stream": source.stream, "--json": report.json}.items():
        if source.jsonl and is_chosen:
            raise UsageError(f"{name} and --jsonl exclude each other.", "Choose one of them.")
    if source.stream and connection.max_in_flight is not None:
        raise UsageError("--stream shows one text at a time.", "Leave --max-in-flight out.")
    if connection.idle_timeout is not None and not source.stream:
        raise UsageError("--idle-timeout is for --stream.", "Add --stream, or use --timeout.")


def _check_log_probs(source: InputOptions, generation: GenerationOptions, report: Reporter) -> None:
    """Raise UsageError if log-probabilities are requested but would not be printed."""
    chosen = given(generation)
    if any(chosen.get(name, False) is not False for name in LOG_PROBS) and not (report.json or source.jsonl):
        raise UsageError("Log-probabilities are printed as JSON only.", "Add --json or --jsonl.")


def _entries(texts: Sequence[str], source: InputOptions) -> Iterator[Entry]:
    """Return the texts of the command line; without any, the lines of --input, or of a pipe or file at standard input.

    Raises UsageError if there is no input, or if both texts and lines are given.
    """
    words = list(texts)
    if words not in ([], [STANDARD_INPUT]):
        if source.jsonl or source.input:
            raise UsageError("There are texts and lines to read.", "Leave out TEXT, or --jsonl and --input.")
        return reading.words(words)
    is_named = bool(words or source.jsonl or source.input)
    if not is_named and not reading.is_piped():
        raise NO_TEXT
    file = reading.opened(source.input or Path(STANDARD_INPUT))
    lines = reading.json_lines(file) if source.jsonl else reading.text_lines(file)
    return lines if is_named else _not_empty(lines)


def _not_empty(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Return `entries` unchanged. Raises UsageError if there are none."""
    first = next(entries, None)
    if first is None:
        raise NO_TEXT
    return chain([first], entries)


def _ranker(model: Model) -> Model:
    """Return a ColBERT as a model that ranks texts for a query."""
    from hfx.client.results import max_sim

    def answer_of(text: str, role: str, *prompt: str) -> Answer:
        own = {names.PROMPT: list(prompt)} if prompt else {}
        return model.answer({names.TEXT_INPUT: [text], names.PROMPT_NAME: [role], **own})

    def answer(request: Request) -> Answer:
        (query,), (text,) = request[names.QUERY], request[names.TEXT_INPUT]
        found = answer_of(text, DOCUMENT)
        query_answer = query_of(query, QUERY, *request.get(names.PROMPT, ()))
        score = max_sim(query_answer[names.EMBEDDING], found[names.EMBEDDING])
        return {names.SCORE: score, names.TRUNCATED_TOKENS: found[names.TRUNCATED_TOKENS]}

    query_of = lru_cache(QUERIES)(answer_of)
    inputs = tuple(TensorMetadata(name, "BYTES", (-1, 1)) for name in TASKS[Task.TEXT_RANKING].row.needed)
    inputs += tuple(each for each in model.metadata.inputs if each.name == names.PROMPT)  # of the query
    metadata = replace(model.metadata, inputs=inputs, outputs=())
    return replace(model, task=Task.TEXT_RANKING, metadata=metadata, answer=answer, answer_many=None)


@contextmanager
def _model(name: str, connection: Connection, place: LocalOptions) -> Iterator[Model]:
    if place.local:
        refuse_all(replace(connection, timeout=None), "the model runs in this process")
        with deferred():
            from hfx.local.models import local_model
        with local_model(place.repository or DEFAULT_REPOSITORY, name, connection.timeout) as model:
            yield model
        return
    if place.repository is not None:
        raise UsageError("--repository is for --local.", "Add --local, or leave --repository out.")
    with connect(connection) as client:
        from hfx.client.served import served_model

        yield served_model(client, name)
