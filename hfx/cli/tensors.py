"""Options and entries as the input tensors of a model: plain values under the tensors' names, checked before sending.

What a model takes is told by the model itself, so that a value of the wrong kind, and an input that there is not, is
refused with what there is. This file must not know how a request travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from hfx import names
from hfx.cli.groups import flag, given
from hfx.cli.reading import Entry
from hfx.cli.task_options import EncoderOptions, GenerationOptions
from hfx.errors import UsageError
from hfx.names import GENERATION_TASKS, Task

if TYPE_CHECKING:
    from hfx.client import ModelMetadata

Request = dict[str, list[Any]]

# The inputs that a request must have, its text first; all others a model does without.
NEEDED: Mapping[Task, tuple[str, ...]] = {
    Task.QUESTION_ANSWERING: (names.QUESTION, names.CONTEXT),
    Task.ZERO_SHOT_CLASSIFICATION: (names.TEXT_INPUT, names.CANDIDATE_LABELS),
}
# The options of EncoderOptions that a task takes; those of GenerationOptions are for generators.
TAKEN: Mapping[Task, frozenset[str]] = {
    Task.TEXT_CLASSIFICATION: frozenset({names.TOP_K}),
    Task.ZERO_SHOT_CLASSIFICATION: frozenset({names.CANDIDATE_LABELS, names.MULTI_LABEL, names.TOP_K}),
    Task.QUESTION_ANSWERING: frozenset({names.CONTEXT}),
    **dict.fromkeys(GENERATION_TASKS, frozenset({names.TOP_K})),
}


def settings(task: Task, encoder: EncoderOptions, generation: GenerationOptions) -> Request:
    """The options as tensors; raises UsageError for one that TASK does not take."""
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
    """The tensors of an entry: its own, and SETTINGS where it has none.

    Raises UsageError for an entry that is none, and for an input or a value that MODEL does not take.
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
    """REQUEST as lists of values that MODEL takes; raises UsageError naming the first that it does not."""
    from hfx.client.inputs import check_text
    from hfx.client.metadata import check_values

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
