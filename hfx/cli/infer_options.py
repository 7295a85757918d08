"""The options and entries of `hfx infer` as the input tensors of a model: plain values under the tensors' names.

Each field of the option groups is named like its tensor. A value of the wrong kind, and an input that the model does
not have, is refused before it is sent; ranges are checked by the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn

from typer import Option

from hfx import names
from hfx.cli.commands import flag, given
from hfx.cli.reading import Entry
from hfx.errors import UsageError
from hfx.names import GENERATION_TASKS, Task

if TYPE_CHECKING:
    from hfx.answering import Request
    from hfx.metadata import ModelMetadata


EarlyStopping = Literal["true", "false", "never"]
Long = Literal["error", "truncate", "chunk"]


@dataclass(frozen=True)
class EncoderOptions:
    """What an encoder is asked; `top_k` is sampling's, too."""

    PANEL: ClassVar[str] = "Classification and question answering"

    candidate_labels: Annotated[
        str | None, Option("--labels", help="Zero-shot: the candidate labels, A,B.", metavar="A,B")
    ] = None
    multi_label: Annotated[
        bool | None, Option("--multi-label/--single-label", help="Zero-shot: score each label by itself.")
    ] = None
    context: Annotated[str | None, Option(help="Question answering: where the answer is.")] = None
    query: Annotated[str | None, Option(help="Text ranking: what the texts are ranked for.")] = None
    raw_scores: Annotated[
        bool | None, Option("--raw-scores/--no-raw-scores", help="Text ranking: scores without an activation.")
    ] = None
    top_k: Annotated[
        int | None, Option(help="Classification: how many labels. Sampling: of how many tokens; 0 of all.")
    ] = None


@dataclass(frozen=True)
class GenerationOptions:
    """How a generator writes; what is left out is as the model's generation_config.json says."""

    PANEL: ClassVar[str] = "Generation"

    max_tokens: Annotated[int | None, Option(help="New tokens at most.")] = None
    min_tokens: Annotated[int | None, Option(help="New tokens at least.")] = None
    num_beams: Annotated[int | None, Option(help="Beams to search with; 1 is no search.")] = None
    length_penalty: Annotated[
        float | None, Option(help="Beam search: above 0 favours longer texts, below 0 shorter ones.")
    ] = None
    early_stopping: Annotated[
        Literal["true", "false", "never"] | None, Option(help="Beam search: end as soon as there are enough texts.")
    ] = None
    num_return_sequences: Annotated[int | None, Option(help="Texts for each TEXT; only with --local.")] = None
    do_sample: Annotated[
        bool | None, Option("--sample/--greedy", help="Draw tokens at random, or take the likeliest.")
    ] = None
    temperature: Annotated[
        float | None, Option(help="Sampling: below 1 favours likely tokens, above 1 unlikely ones.")
    ] = None
    top_p: Annotated[
        float | None, Option(help="Sampling: from the likeliest tokens with this share of the probability.")
    ] = None
    min_p: Annotated[float | None, Option(help="Sampling: least probability, as a share of the likeliest token's.")] = (
        None
    )
    seed: Annotated[int | None, Option(help="Sampling: the same seed gives the same text.")] = None
    stop_words: Annotated[
        list[str] | None, Option("--stop", help="Text to stop before; may be given several times.")
    ] = None
    repetition_penalty: Annotated[float | None, Option(help="Above 1: against tokens that were there before.")] = None
    no_repeat_ngram_size: Annotated[int | None, Option(help="No sequence of this many tokens twice.")] = None
    long: Annotated[
        Literal["error", "truncate", "chunk"] | None,
        Option(help="What to do with a text that is too long for the model."),
    ] = None
    merge: Annotated[Literal["concat", "recursive"] | None, Option(help="Chunks: how their answers become one.")] = None
    overlap: Annotated[int | None, Option(help="Chunks: sentences that two share.")] = None
    source_lang: Annotated[str | None, Option(help="Translation: the code of the text's language.", metavar="CODE")] = (
        None
    )
    target_lang: Annotated[
        str | None, Option(help="Translation: the code of the answer's language.", metavar="CODE")
    ] = None
    return_log_probs: Annotated[
        bool | None, Option("--log-probs/--no-log-probs", help="The tokens' log-probabilities.")
    ] = None
    logprobs: Annotated[int | None, Option(help="The tokens, and N of the likeliest in the place of each.")] = None


# The inputs that a request must have, its text first; all others a model does without.
NEEDED: Mapping[Task, tuple[str, ...]] = {
    Task.QUESTION_ANSWERING: (names.QUESTION, names.CONTEXT),
    Task.ZERO_SHOT_CLASSIFICATION: (names.TEXT_INPUT, names.CANDIDATE_LABELS),
    Task.TEXT_RANKING: (names.TEXT_INPUT, names.QUERY),
}
# The options of EncoderOptions that a task takes; those of GenerationOptions are for generators.
TAKEN: Mapping[Task, frozenset[str]] = {
    Task.TEXT_CLASSIFICATION: frozenset({names.TOP_K}),
    Task.ZERO_SHOT_CLASSIFICATION: frozenset({names.CANDIDATE_LABELS, names.MULTI_LABEL, names.TOP_K}),
    Task.QUESTION_ANSWERING: frozenset({names.CONTEXT}),
    Task.TEXT_RANKING: frozenset({names.QUERY, names.RAW_SCORES}),
    **dict.fromkeys(GENERATION_TASKS, frozenset({names.TOP_K})),
}


def settings(task: Task, encoder: EncoderOptions, generation: GenerationOptions) -> Request:
    """The options as tensors; raises UsageError for one that `task` does not take."""
    taken = TAKEN.get(task, frozenset())
    for field in given(encoder):
        if field not in taken:
            _refuse_option(task, flag(EncoderOptions, field))
    for field in given(generation):
        if task not in GENERATION_TASKS:
            _refuse_option(task, flag(GenerationOptions, field))
    chosen = given(encoder) | given(generation)
    if names.CANDIDATE_LABELS in chosen:
        chosen[names.CANDIDATE_LABELS] = _split(chosen[names.CANDIDATE_LABELS])
    return {name: _listed(value) for name, value in chosen.items()}


def request_of(task: Task, entry: Entry, settings: Request, model: ModelMetadata) -> Request:
    """The tensors of an entry: its own, and `settings` where it has none.

    Raises UsageError for an entry that is none, and for an input or a value that `model` does not take.
    """
    if isinstance(entry.content, UsageError):
        raise entry.content
    needed = NEEDED.get(task, (names.TEXT_INPUT,))
    own = {needed[0]: entry.content} if isinstance(entry.content, str) else entry.content
    request = settings | {name: _listed(value) for name, value in own.items() if value is not None}
    for name in needed:
        if name not in request:
            option = f" with {flag(EncoderOptions, name)}, or" if name in EncoderOptions.__annotations__ else ""
            raise UsageError(f"This {task} model needs a {name}.", f'Give it{option} as "{name}" of a JSON line.')
    return checked(request, model)


def checked(request: Mapping[str, Any], model: ModelMetadata) -> Request:
    """`request` as lists of values that `model` takes; raises UsageError naming the first that it does not."""
    from hfx.metadata import check_text, check_values

    values = {name: _listed(value) for name, value in request.items()}
    check_values(model, values)
    single = {tensor.name for tensor in model.inputs if tensor.shape[-1] != -1}
    for name, each in values.items():
        if name in single and len(each) != 1:
            raise UsageError(f"There are {len(each)} values of {name}.", "Give one.")
        for value in each:
            if isinstance(value, str):
                check_text(value, name)
    return values


def _refuse_option(task: Task, option: str) -> NoReturn:
    raise UsageError(f"A {task} model does not take {option}.", f"Leave {option} out.")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _split(labels: str) -> list[str]:
    return [label.strip() for label in labels.split(",") if label.strip()]
