"""One function a task: what is asked of a model, of one text or of many, for both clients.

Each makes calls of texts and hands them to the session. It must not know connections or waiting.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from hfx.client.generations import Generation, Piece, decode_generation, decode_piece
from hfx.client.inputs import (
    Values,
    check_text,
    classification_values,
    question_values,
    text_values,
    zero_shot_values,
)
from hfx.client.metadata import ModelMetadata
from hfx.client.results import decode_answer, decode_classification, decode_embedding, decode_entities
from hfx.client.session import Call, Session
from hfx.client.settings import GenerationSettings, setting_values
from hfx.client.tasks import check_summarizer
from hfx.errors import HfxError, UsageError
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
    from hfx.client.tensors import Array

Item = TypeVar("Item")
Result = TypeVar("Result")
Texts = str | Iterable[str]
GENERATED = (TEXT_OUTPUT, FINISH_REASON, INPUT_TOKENS, OUTPUT_TOKENS)


@dataclass(frozen=True)
class Asker:
    """How questions are put: through which session, within how many seconds, with errors returned or raised."""

    session: Session
    timeout: float | None = None
    return_errors: bool = False

    async def ask(self, make: Callable[[Any], Call[Any]], texts: Texts) -> Any:
        """The result of a text, or the list of many texts' results."""
        if isinstance(texts, str):
            return await self.session.ask(make, texts, self.timeout)
        return await self.ask_many(make, texts)

    async def ask_many(self, make: Callable[[Item], Call[Any]], items: Iterable[Item]) -> Any:
        """The list of many results."""
        _check_iterable(items)
        ask = self.session.ask_each if self.return_errors else self.session.ask_all
        return await ask(make, items, self.timeout)


async def classify(asker: Asker, name: str, texts: Texts, top_k: int | None) -> Any:
    """A Classification a text."""
    return await asker.ask(
        lambda text: Call(name, classification_values(text, top_k), decode_classification, (LABEL, SCORE)), texts
    )


async def label_tokens(asker: Asker, name: str, texts: Texts) -> Any:
    """Entities of each text."""
    return await asker.ask(lambda text: Call(name, text_values(text), decode_entities, (ENTITIES,)), texts)


async def answer(asker: Asker, name: str, question: Texts, context: Texts) -> Any:
    """An Answer a question."""

    def make(pair: tuple[str, str]) -> Call[Any]:
        return Call(name, question_values(*pair), decode_answer, (ANSWER, SCORE, START, END))

    if not isinstance(question, str):
        return await asker.ask_many(make, _pairs(question, context))
    if not isinstance(context, str):
        raise UsageError("There is one question but a list of contexts.", "Give as many questions as contexts.")
    return await asker.session.ask(make, (question, context), asker.timeout)


async def embed(asker: Asker, name: str, texts: Texts) -> Any:
    """float32 of shape [d] for a text, [number of texts, d] for many; a list of vectors and errors where asked for."""
    found = await asker.ask(lambda text: Call(name, text_values(text), decode_embedding, (EMBEDDING,)), texts)
    if isinstance(texts, str):
        return found.vector
    if asker.return_errors:
        return [each if isinstance(each, HfxError) else each.vector for each in found]
    import numpy as np

    return np.stack([each.vector for each in found]) if found else np.empty((0, await _width(asker, name)), np.float32)


async def zero_shot(
    asker: Asker, name: str, texts: Texts, labels: Iterable[str], multi_label: bool | None, top_k: int | None
) -> Any:
    """A Classification by LABELS a text."""
    candidates = labels if isinstance(labels, str) else list(labels)

    def make(text: str) -> Call[Any]:
        return Call(name, zero_shot_values(text, candidates, top_k, multi_label), decode_classification, (LABEL, SCORE))

    return await asker.ask(make, texts)


async def generate(asker: Asker, name: str, texts: Texts, settings: GenerationSettings) -> Any:
    """A Generation a text."""
    chosen = setting_values(settings)

    def make(text: str) -> Call[Generation]:
        return Call(name, {TEXT_INPUT: [check_text(text, "text")], **chosen}, decode_generation, GENERATED)

    return await asker.ask(make, texts)


async def summarize(asker: Asker, name: str, texts: Texts, settings: GenerationSettings) -> Any:
    """A Generation a text, of a model that summarizes."""
    check_summarizer(await metadata(asker, name))
    return await generate(asker, name, texts, settings)


async def infer(asker: Asker, name: str, values: Values) -> dict[str, Array]:
    """Output tensors by name."""
    return await asker.session.ask(lambda values: Call(name, values, dict), values, asker.timeout)


def infer_each(
    asker: Asker, name: str, requests: Iterable[Values]
) -> AsyncGenerator[dict[str, Array] | HfxError, None]:
    """Output tensors or an error for each."""
    return asker.session.iterate(lambda values: Call(name, values, dict), requests, asker.timeout)


async def models(asker: Asker) -> list[str]:
    """The names to ask for."""
    session = asker.session
    deadline = session.deadline(asker.timeout)
    return await session.retries.carry_out(
        lambda: session.explained("", "", deadline, session.models(deadline.left())), deadline
    )


async def metadata(asker: Asker, name: str) -> ModelMetadata:
    """What model NAME takes and gives."""
    session = asker.session
    deadline = session.deadline(asker.timeout)
    return await session.retries.carry_out(lambda: session.describe(name, deadline), deadline)


def streamed(name: str, text: str, settings: GenerationSettings) -> Call[Piece]:
    """The question to the engine of NAME that is answered in pieces."""
    values: Values = {TEXT_INPUT: [check_text(text, "text")], STREAM: [True], **setting_values(settings)}
    return Call(check_text(name, "model's name") + STREAM_SUFFIX, values, decode_piece, GENERATED)


def _pairs(questions: Iterable[str], contexts: Texts) -> Iterable[tuple[str, str]]:
    _check_iterable(questions)
    if isinstance(contexts, str):
        return zip(questions, repeat(contexts), strict=False)
    first, second = list(questions), list(contexts)
    if len(first) != len(second):
        raise UsageError(
            f"There are {len(first)} questions but {len(second)} contexts.",
            "Give one context for all, or one for each.",
        )
    return zip(first, second, strict=True)


def _check_iterable(items: object) -> None:
    if isinstance(items, bytes) or not isinstance(items, Iterable):
        raise UsageError(f"The texts are of type {type(items).__name__}.", "Give a str, or a list of them.")


async def _width(asker: Asker, name: str) -> int:
    model = await metadata(asker, name)
    return next((max(t.shape[-1], 0) for t in model.outputs if t.name == EMBEDDING), 0)
