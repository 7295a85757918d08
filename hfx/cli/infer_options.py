"""Turns the options and entries of `hfx infer` into the input tensors of a model: plain values by tensor name.

Each field of the option groups is named like its tensor. A value of the wrong kind, or an input that the model does not
have, is refused before it is sent. The model itself checks ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn

from hfx import names
from hfx.cli.commands import flag, given
from hfx.cli.reading import Entry
from hfx.errors import UsageError
from hfx.names import GENERATION_TASKS, Task
from hfx.options import Option, option
from hfx.python_backends.engine.generation_settings import SETTINGS, TRANSLATION, Setting
from hfx.tasks import TASKS

if TYPE_CHECKING:
    from hfx.answering import Request
    from hfx.metadata import ModelMetadata


@dataclass(frozen=True)
class EncoderOptions:
    """The settings of encoders. `top_k` and `long` are also settings of generators."""

    PANEL: ClassVar[str] = "Classification and question answering"

    candidate_labels: str | None = option(
        None, "Zero-shot: candidate labels. GLiNER: labels of the entities to find.", "--labels", metavar="A,B"
    )
    multi_label: bool | None = option(
        None,
        "Zero-shot: score each label independently, or all against each other. GLiNER: an entity may have several.",
        "--multi-label/--single-label",
    )
    threshold: float | None = option(None, "GLiNER: score that an entity must exceed. Default: 0.5.")
    nested: bool | None = option(None, "GLiNER: an entity may be inside another one.", "--nested/--flat")
    context: str | None = option(None, "Question answering: text that contains the answer.")
    max_answer_len: int | None = option(None, "Question answering: most tokens of an answer.")
    long: Literal["truncate", "chunk", "error", "mean", "max"] | None = option(
        None,
        "Texts longer than the model: cut them (truncate), refuse them (error), or read all of them in parts. "
        "Classification joins the scores (mean, max); token classification and generation the answers (chunk).",
    )
    stride: int | None = option(None, "Classification: tokens that two windows over a long text share.")
    doc_stride: int | None = option(
        None,
        "Question answering: tokens that two windows over a long context share.",
    )
    handle_impossible_answer: bool | None = option(
        None,
        "Question answering: the answer may be empty.",
        "--handle-impossible-answer/--no-handle-impossible-answer",
    )
    query: str | None = option(None, "Text ranking, also with ColBERT: query to rank the texts for.")
    raw_scores: bool | None = option(
        None, "Text ranking: return scores without activation function.", "--raw-scores/--no-raw-scores"
    )
    apply_softmax: bool | None = option(
        None, "Text ranking with several labels: return scores that add up to 1.", "--apply-softmax/--no-apply-softmax"
    )
    dimensions: int | None = option(None, "Embeddings: length of the vector, if the model supports shorter ones.")
    prompt_name: str | None = option(
        None,
        "Embeddings and ranking: name of the model's prompt to prepend to each text (to the query).",
        metavar="NAME",
    )
    prompt: str | None = option(None, "Embeddings and ranking: text to prepend instead.")
    targets: str | None = option(None, "Fill-mask: consider only these tokens.", metavar="A,B")
    top_k: int | None = option(
        None,
        "Classification, fill-mask and question answering: number of labels, tokens or answers to return. Sampling: "
        "draw from this many of the likeliest tokens; 0: from all.",
    )


# The options of settings that are not typed like their names.
TYPED = {
    names.DO_SAMPLE: "--sample/--greedy",
    names.STOP_WORDS: "--stop",
    names.RETURN_LOG_PROBS: "--log-probs/--no-log-probs",
}


def _with_settings(group: type) -> type:
    """Return GROUP with a field for each setting of generators, except the settings that encoders have too."""
    for setting in SETTINGS.values():
        if setting.name not in EncoderOptions.__annotations__:
            group.__annotations__[setting.name] = Annotated[_type(setting) | None, _option(setting)]
            setattr(group, setting.name, None)
    return group


def _type(setting: Setting) -> Any:
    if setting.is_list:
        return list[setting.item]  # type: ignore[name-defined]
    if setting.choices and setting.type is not bool:
        return Literal[tuple(str(choice).lower() for choice in setting.choices)]
    return str if setting.dtype == "STRING" else setting.type  # an object is typed as JSON


def _option(setting: Setting) -> Any:
    typed = [TYPED[setting.name]] if setting.name in TYPED else []
    several = ". Repeatable" if setting.is_list else ""
    metavar = "CODE" if setting.scope == TRANSLATION else None
    return Option(*typed, help=f"{setting.text}{several}.", metavar=metavar)


@dataclass(frozen=True)
@_with_settings
class GenerationOptions:
    """The settings of generators. Defaults are in the model's generation_config.json."""

    PANEL: ClassVar[str] = "Generation"


def settings(task: Task, encoder: EncoderOptions, generation: GenerationOptions) -> Request:
    """Return the options as input tensors. Raises UsageError for an option that `task` does not take."""
    row = TASKS[task].row
    taken = {*row.texts[1:], *row.settings}
    for field in given(encoder):
        if field not in taken:
            _refuse_option(task, flag(EncoderOptions, field))
    for field in given(generation):
        if task not in GENERATION_TASKS:
            _refuse_option(task, flag(GenerationOptions, field))
    chosen = given(encoder) | given(generation)
    for name in chosen.keys() & {names.CANDIDATE_LABELS, names.TARGETS}:
        chosen[name] = [label.strip() for label in chosen[name].split(",") if label.strip()]
    return {name: _listed(value) for name, value in chosen.items()}


def request_of(task: Task, entry: Entry, settings: Request, model: ModelMetadata) -> Request:
    """Return the tensors of an entry: its own tensors, and `settings` for the others.

    Raises the UsageError of an entry that could not be read, and UsageError for an input or a value that `model` does
    not take.
    """
    if isinstance(entry.content, UsageError):
        raise entry.content
    needed = TASKS[task].row.needed_by(model.input_types)
    own = {needed[0]: entry.content} if isinstance(entry.content, str) else entry.content
    request = settings | {name: _listed(value) for name, value in own.items() if value is not None}
    for name in needed:
        if name not in request:
            option = f" with {flag(EncoderOptions, name)}, or" if name in EncoderOptions.__annotations__ else ""
            raise UsageError(
                f"This {task} model needs the input {name}.", f'Give it{option} as "{name}" of a JSON line.'
            )
    return checked(request, model)


def checked(request: Mapping[str, Any], model: ModelMetadata) -> Request:
    """Return `request` as lists of values. Raises UsageError with the first value that `model` does not take."""
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
