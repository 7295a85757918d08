"""A task's question as plain values under the names of a model's tensors, checked before anything is sent.

`{"text_input": ["some text"]}` is one request. This file must not know connections, results or numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hfx.errors import UsageError
from hfx.names import CANDIDATE_LABELS, CONTEXT, MULTI_LABEL, QUESTION, TEXT_INPUT, TOP_K

Value = str | int | float | bool
Values = Mapping[str, Sequence[Value]]
INT32_MAX = 2**31 - 1


def classification_values(text: str, top_k: int | None = None) -> dict[str, list[Value]]:
    """The inputs of text-classification."""
    return {TEXT_INPUT: [check_text(text, "text")], **_top_k(top_k)}


def text_values(text: str) -> dict[str, list[Value]]:
    """The inputs of token-classification and feature-extraction."""
    return {TEXT_INPUT: [check_text(text, "text")]}


def question_values(question: str, context: str) -> dict[str, list[Value]]:
    """The inputs of question-answering."""
    return {QUESTION: [check_text(question, "question")], CONTEXT: [check_text(context, "context")]}


def zero_shot_values(
    text: str, labels: Iterable[str], top_k: int | None = None, multi_label: bool | None = None
) -> dict[str, list[Value]]:
    """The inputs of zero-shot-classification; None leaves a choice to the model."""
    if isinstance(labels, str):
        raise UsageError(f"The labels are one string, {labels!r}.", f"Give a list: {labels.split(',')!r}.")
    candidates: list[Value] = [check_text(label, "label") for label in labels]
    if not candidates:
        raise UsageError("There are no candidate labels.", "Give at least one.")
    several: dict[str, list[Value]] = {} if multi_label is None else {MULTI_LABEL: [bool(multi_label)]}
    return {TEXT_INPUT: [check_text(text, "text")], CANDIDATE_LABELS: candidates, **_top_k(top_k), **several}


def _top_k(top_k: int | None) -> dict[str, list[Value]]:
    if top_k is None:
        return {}
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= INT32_MAX:
        raise UsageError(f"top_k is {top_k!r}.", "Give a whole number from 1 up, or leave it out for the model's own.")
    return {TOP_K: [top_k]}


def check_text(text: object, role: str) -> str:
    """TEXT when it is a string that UTF-8 can carry; raises UsageError otherwise."""
    if not isinstance(text, str):
        raise UsageError(f"The {role} is of type {type(text).__name__}, not a string.", "Give a str.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"The {role} holds half of a surrogate pair at character {error.start}: that is no Unicode text.",
            'Read its source with the right encoding, or replace such characters: text.encode("utf-8", "replace").',
        ) from None
    return text
