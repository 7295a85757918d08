"""One function a task: what is sent to a model for a text, and what its answer means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hfx.client.inputs import (
    Values,
    check_text,
    classification_values,
    question_values,
    text_values,
    zero_shot_values,
)
from hfx.client.results import (
    Answer,
    Classification,
    Embedding,
    Entities,
    Generation,
    Piece,
    decode_answer,
    decode_classification,
    decode_embedding,
    decode_entities,
    decode_generation,
    decode_piece,
)
from hfx.client.settings import GenerationSettings, setting_values
from hfx.errors import UsageError
from hfx.names import (
    ANSWER,
    EMBEDDING,
    END,
    ENTITIES,
    FINISH_REASON,
    INPUT_TOKENS,
    LABEL,
    OUTPUT_TOKENS,
    SCORE,
    START,
    STREAM,
    STREAM_SUFFIX,
    TEXT_INPUT,
    TEXT_OUTPUT,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hfx.client.tensors import Array, Tensors
    from hfx.metadata import ModelMetadata

    Vectors = npt.NDArray[np.float32]

Result = TypeVar("Result")
# Types of the clients' parameters.
Many = Iterable[str]
Texts = str | Many
Seconds = float | None
Count = int | None
Flag = bool | None
Preset = GenerationSettings | None

GENERATED = (TEXT_OUTPUT, FINISH_REASON, INPUT_TOKENS, OUTPUT_TOKENS)


@dataclass(frozen=True)
class Call(Generic[Result]):
    """One request: the model, its inputs as plain values, how its answer is decoded, the outputs that it must have."""

    model: str
    values: Values
    decode: Callable[[Tensors], Result]
    needs: tuple[str, ...] = ()


def infer(name: str) -> Callable[[Values], Call[dict[str, Array]]]:
    """Plain values of any model's inputs; all output tensors by name."""
    return lambda values: Call(name, values, dict)


def classify(name: str, top_k: Count) -> Callable[[str], Call[Classification]]:
    """Text classification."""
    return lambda text: Call(name, classification_values(text, top_k), decode_classification, (LABEL, SCORE))


def label_tokens(name: str) -> Callable[[str], Call[Entities]]:
    """Token classification."""
    return lambda text: Call(name, text_values(text), decode_entities, (ENTITIES,))


def answer(name: str) -> Callable[[tuple[str, str]], Call[Answer]]:
    """Question answering, of a question and a context."""
    return lambda pair: Call(name, question_values(*pair), decode_answer, (ANSWER, SCORE, START, END))


def embed(name: str) -> Callable[[str], Call[Embedding]]:
    """Feature extraction."""
    return lambda text: Call(name, text_values(text), decode_embedding, (EMBEDDING,))


def zero_shot(name: str, labels: Many, multi_label: Flag, top_k: Count) -> Callable[[str], Call[Classification]]:
    """Zero-shot classification by candidate `labels`."""
    candidates = labels if isinstance(labels, str) else list(labels)
    return lambda text: Call(
        name, zero_shot_values(text, candidates, top_k, multi_label), decode_classification, (LABEL, SCORE)
    )


def generate(name: str, settings: GenerationSettings) -> Callable[[str], Call[Generation]]:
    """A generated text."""
    values = setting_values(settings)
    return lambda text: Call(name, {TEXT_INPUT: [check_text(text, "text")], **values}, decode_generation, GENERATED)


def stream(name: str, text: str, settings: GenerationSettings) -> Call[Piece]:
    """A generated text in pieces: the request is to the engine of `name`."""
    values: Values = {TEXT_INPUT: [check_text(text, "text")], STREAM: [True], **setting_values(settings)}
    return Call(check_text(name, "model's name") + STREAM_SUFFIX, values, decode_piece, GENERATED)


def pairs(questions: Texts, contexts: Texts) -> tuple[str, str] | Iterable[tuple[str, str]]:
    """A question and its context; or pairs of many, with one context for all or one for each."""
    if isinstance(questions, str):
        if not isinstance(contexts, str):
            raise UsageError("There is one question but a list of contexts.", "Give as many questions as contexts.")
        return questions, contexts
    check_iterable(questions)
    if isinstance(contexts, str):
        return zip(questions, repeat(contexts), strict=False)
    first, second = list(questions), list(contexts)
    if len(first) != len(second):
        raise UsageError(
            f"There are {len(first)} questions but {len(second)} contexts.",
            "Give one context for all, or one for each.",
        )
    return zip(first, second, strict=True)


def matrix(embeddings: Sequence[Embedding], model: ModelMetadata) -> Vectors:
    """The vectors as float32 of shape [number of texts, d]."""
    import numpy as np

    if embeddings:
        return np.stack([embedding.vector for embedding in embeddings])
    width = next((max(tensor.shape[-1], 0) for tensor in model.outputs if tensor.name == EMBEDDING), 0)
    return np.empty((0, width), np.float32)


def check_iterable(items: Any) -> None:
    """Raise UsageError for what is neither a text nor an iterable of texts."""
    if isinstance(items, bytes) or not isinstance(items, Iterable):
        raise UsageError(f"The texts are of type {type(items).__name__}.", "Give a str, or a list of them.")
