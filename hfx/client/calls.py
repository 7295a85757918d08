"""Functions that make the Call of each task: the input values for a text, and the decoder of the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from hfx import names
from hfx.client import results
from hfx.client.errors import MALFORMED
from hfx.client.settings import GenerationSettings, setting_values
from hfx.errors import ServerError, UsageError
from hfx.metadata import INT32_MAX, Values, check_outputs, check_text, check_values
from hfx.python_backends.settings import DOCUMENT, QUERY

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hfx.client.tensors import Tensors
    from hfx.metadata import ModelMetadata

    Vectors = npt.NDArray[np.float32]

Result = TypeVar("Result")
# Types of the clients' parameters.
Many = Iterable[str]
Texts = str | Many
Seconds = float | None
Count = int | None
Share = float | None
Flag = bool | None
Word = str | None
Preset = GenerationSettings | None


class AnswerSettings(TypedDict, total=False):
    """The settings of question answering, named and defined as in transformers' QuestionAnsweringPipeline (4.57)."""

    top_k: Count
    max_answer_len: Count
    doc_stride: Count
    handle_impossible_answer: Flag


class LongTexts(TypedDict, total=False):
    """How a text that is longer than the model is read: `long`, and the tokens that two windows share (`stride`)."""

    long: Word
    stride: Count


class Search(LongTexts, total=False):
    """How texts are read, and which entities a model finds whose labels a request names."""

    threshold: Share
    nested: Flag
    multi_label: Flag


GENERATED = (names.TEXT_OUTPUT, names.FINISH_REASON, names.INPUT_TOKENS, names.OUTPUT_TOKENS)


@dataclass(frozen=True)
class Call(Generic[Result]):
    """One request.

    `values` are the inputs of `model` as plain values, `decode` makes the result from the output tensors, and `needs`
    names the outputs that the model must have.
    """

    model: str
    values: Values
    decode: Callable[[Tensors], Result]
    needs: tuple[str, ...] = ()

    def check(self, model: ModelMetadata) -> None:
        """Raise UsageError if `model` lacks an output or an input of the call, or needs labels and gets none."""
        check_outputs(model, self.needs)
        check_values(model, self.values)
        if model.needs_labels and names.CANDIDATE_LABELS not in self.values:
            raise UsageError(
                f"The model {model.name!r} needs labels ({names.CANDIDATE_LABELS}).",
                'Give those that it should look for, such as ["person", "place"].',
            )

    def result(self, outputs: Tensors) -> Result:
        """Decode the answer. Raises ServerError, also for tensors of types that `decode` doesn't expect."""
        try:
            return self.decode(outputs)
        except MALFORMED as error:
            raise ServerError(f"The answer of the model {self.model!r} can't be read: {error!r}.") from error


def classify(
    name: str, top_k: Count, long: Word = None, stride: Count = None
) -> Callable[[str], Call[results.Classification]]:
    """Return a function that makes the call to classify a text."""
    options = {**_count(names.TOP_K, top_k), **_long(long, stride)}
    return lambda text: Call(name, _text(text) | options, results.decode_classification, (names.LABEL, names.SCORE))


def label_tokens(
    name: str,
    labels: Many | None = None,
    threshold: Share = None,
    nested: Flag = None,
    multi_label: Flag = None,
    long: Word = None,
    stride: Count = None,
) -> Callable[[str], Call[results.Entities]]:
    """Return a function that makes the call to find a text's entities, of any label or only of `labels`."""
    options = {} if labels is None else _labels(labels)
    options |= {**_share(names.THRESHOLD, threshold), **_long(long, stride)}
    options |= _flags({names.NESTED: nested, names.MULTI_LABEL: multi_label})
    return lambda text: Call(name, _text(text) | options, results.decode_entities, (names.ENTITIES,))


def fill_mask(name: str, top_k: Count, targets: Texts | None) -> Callable[[str], Call[results.Fills]]:
    """Return a function that makes the call to fill a text's masks with any tokens, or only with `targets`."""
    options = _count(names.TOP_K, top_k)
    if targets is not None:
        chosen = [targets] if isinstance(targets, str) else list(targets)
        if not chosen:
            raise UsageError("There are no targets.", "Give at least one, or leave them out for any token.")
        options[names.TARGETS] = [check_text(target, "target") for target in chosen]
    return lambda text: Call(name, _text(text) | options, results.decode_fills, (names.FILLS,))


def answer(
    name: str,
    top_k: Count = None,
    max_answer_len: Count = None,
    doc_stride: Count = None,
    handle_impossible_answer: Flag = None,
) -> Callable[[tuple[str, str]], Call[results.Answer]]:
    """Return a function that makes the call for a pair of a question and a context."""
    options = {
        **_count(names.TOP_K, top_k),
        **_count(names.MAX_ANSWER_LEN, max_answer_len),
        **_count(names.DOC_STRIDE, doc_stride, least=0),
    }
    options |= _flags({names.HANDLE_IMPOSSIBLE_ANSWER: handle_impossible_answer})
    decode = results.decode_answer if top_k is None else results.decode_answers
    needs = (names.ANSWER, names.SCORE, names.START, names.END) if top_k is None else (names.ANSWERS,)

    def call(pair: tuple[str, str]) -> Call[results.Answer]:
        values = {names.QUESTION: [check_text(pair[0], "question")], names.CONTEXT: [check_text(pair[1], "context")]}
        return Call(name, values | options, decode, needs)

    return call


def embed(
    name: str, prompt_name: Word = None, prompt: Word = None, dimensions: Count = None
) -> Callable[[str], Call[results.Embedding]]:
    """Return a function that makes the call to embed a text."""
    options = {**_prompts(prompt_name, prompt), **_count(names.DIMENSIONS, dimensions)}
    return lambda text: Call(name, _text(text) | options, results.decode_embedding, (names.EMBEDDING,))


def embed_tokens(name: str, prompt_name: Word = None, prompt: Word = None) -> Callable[[str], Call[results.Embedding]]:
    """Return a function that makes the call for the vectors of a text's tokens."""
    options = _prompts(prompt_name, prompt)
    return lambda text: Call(name, _text(text) | options, results.decode_token_embeddings, (names.EMBEDDING,))


def query_tokens(name: str, prompt_name: Word, prompt: Word) -> Callable[[str], Call[results.Embedding]]:
    """Return a function that makes the call for the token vectors of a ColBERT's query.

    Raises UsageError for a `prompt_name`.
    """
    if prompt_name is not None:
        raise UsageError("The model's prompts are for queries and documents.", "Leave prompt_name out.")
    return embed_tokens(name, QUERY, prompt)


def rank_by_tokens(name: str, query: Vectors) -> Callable[[tuple[int, str]], Call[results.Rank]]:
    """Return a function that makes a ColBERT's call for (index, text); the score is MaxSim with the query's vectors."""
    make = embed_tokens(name, DOCUMENT)

    def call(item: tuple[int, str]) -> Call[results.Rank]:
        index, text = item
        return Call(name, make(text).values, partial(results.decode_max_sim, query=query, index=index))

    return call


def zero_shot(
    name: str, labels: Many, multi_label: Flag, top_k: Count
) -> Callable[[str], Call[results.Classification]]:
    """Return a function that makes the call to classify a text by candidate `labels`."""
    options = {**_labels(labels), **_count(names.TOP_K, top_k), **_flags({names.MULTI_LABEL: multi_label})}
    return lambda text: Call(name, _text(text) | options, results.decode_classification, (names.LABEL, names.SCORE))


def rank(
    name: str, query: str, raw_scores: Flag, prompt_name: Word = None, prompt: Word = None
) -> Callable[[tuple[int, str]], Call[results.Rank]]:
    """Return a function that makes the call to score (index, text) for `query`."""
    options: dict[str, list[Any]] = {names.QUERY: [check_text(query, "query")], **_prompts(prompt_name, prompt)}
    options |= _flags({names.RAW_SCORES: raw_scores})

    def call(item: tuple[int, str]) -> Call[results.Rank]:
        index, text = item
        return Call(name, _text(text) | options, partial(results.decode_rank, index=index), (names.SCORE,))

    return call


def predict(
    name: str, raw_scores: Flag, apply_softmax: Flag, prompt_name: Word = None, prompt: Word = None
) -> Callable[[tuple[str, str]], Call[Vectors]]:
    """Return a function that makes the call for the scores of all labels for (query, text)."""
    options: dict[str, list[Any]] = {**_prompts(prompt_name, prompt)}
    options |= _flags({names.RAW_SCORES: raw_scores, names.APPLY_SOFTMAX: apply_softmax})

    def call(pair: tuple[str, str]) -> Call[Vectors]:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise UsageError(f"{pair!r:.80} is not a pair.", "Give pairs of a query and a text.")
        query = {names.QUERY: [check_text(pair[0], "query")]}
        return Call(name, _text(pair[1]) | query | options, results.decode_scores, (names.SCORE,))

    return call


def generate(name: str, settings: GenerationSettings) -> Callable[[str], Call[results.Generation]]:
    """Return a function that makes the call to continue a text."""
    values = setting_values(settings)
    return lambda text: Call(name, _text(text) | values, results.decode_generation, GENERATED)


def infer(name: str, values: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """Return the call to any model with input `values`. A single text or number is put into a list."""
    lists: Values = {key: [value] if isinstance(value, str | int | float) else value for key, value in values.items()}
    return Call(name, lists, dict)


def stream(name: str, text: str, settings: GenerationSettings) -> Call[results.Piece]:
    """Return the call to generate a text in pieces, which goes to the engine of the model `name`."""
    values: Values = _text(text) | {names.STREAM: [True]} | setting_values(settings)
    engine = check_text(name, "the model's name").removesuffix(names.STREAM_SUFFIX) + names.STREAM_SUFFIX
    return Call(engine, values, results.decode_piece, GENERATED)


def pairs(questions: Texts, contexts: Texts) -> tuple[str, str] | Iterable[tuple[str, str]]:
    """Return (question, context), or an iterable of such pairs for lists; one context may serve all questions.

    Raises UsageError if the numbers of questions and contexts don't match.
    """
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


def matrix(embeddings: Sequence[results.Embedding], model: ModelMetadata) -> Vectors:
    """Return the vectors of `embeddings` as float32 of shape [number of texts, d]."""
    import numpy as np

    if embeddings:
        return np.stack([embedding.vector for embedding in embeddings])
    width = next((max(tensor.shape[-1], 0) for tensor in model.outputs if tensor.name == names.EMBEDDING), 0)
    return np.empty((0, width), np.float32)


def scores(rows: Sequence[Vectors], model: ModelMetadata) -> Vectors:
    """Return the scores as float32 of shape [pairs, labels], or of shape [pairs] if there is one label."""
    import numpy as np

    width = next((max(tensor.shape[-1], 0) for tensor in model.outputs if tensor.name == names.SCORE), 1)
    matrix = np.stack(rows) if rows else np.empty((0, width), np.float32)
    return matrix[:, 0] if matrix.shape[1] == 1 else matrix


def check_several(texts: Many) -> None:
    """Raise UsageError unless `texts` is an iterable of texts. A single text is refused."""
    if isinstance(texts, str):
        raise UsageError("The texts are one string.", "Give a list of texts.")
    check_iterable(texts)


def check_iterable(items: Any) -> None:
    """Raise UsageError if `items` can't be iterated over, or is bytes."""
    if isinstance(items, bytes) or not isinstance(items, Iterable):
        raise UsageError(f"The texts are of type {type(items).__name__}.", "Give a str, or a list of them.")


def _text(text: str) -> dict[str, list[Any]]:
    return {names.TEXT_INPUT: [check_text(text, "text")]}


def _prompts(prompt_name: Word, prompt: Word) -> dict[str, list[Any]]:
    given = {names.PROMPT_NAME: prompt_name, names.PROMPT: prompt}
    return {name: [check_text(value, name)] for name, value in given.items() if value is not None}


def _labels(labels: Many) -> dict[str, list[Any]]:
    if isinstance(labels, str):
        raise UsageError(f"The labels are one string, {labels!r}.", f"Give a list: {labels.split(',')!r}.")
    checked = [check_text(label, "label") for label in labels]
    if not checked:
        raise UsageError("There are no candidate labels.", "Give at least one.")
    return {names.CANDIDATE_LABELS: checked}


def _flags(given: Mapping[str, Flag]) -> dict[str, list[Any]]:
    return {name: [bool(value)] for name, value in given.items() if value is not None}


def _share(name: str, share: Share) -> dict[str, list[Any]]:
    if share is None:
        return {}
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise UsageError(f"{name} is {share!r}.", "Give a number above 0, at most 1, or leave it out for 0.5.")
    return {name: [share]}


def _long(long: Word, stride: Count) -> dict[str, list[Any]]:
    chosen = {} if long is None else {names.LONG: [check_text(long, names.LONG)]}
    return {**chosen, **_count(names.STRIDE, stride, least=0)}


def _count(name: str, count: Count, least: int = 1) -> dict[str, list[Any]]:
    if count is None:
        return {}
    if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= INT32_MAX:
        fix = f"Give a whole number from {least} up, or leave it out for the model's own."
        raise UsageError(f"{name} is {count!r}.", fix)
    return {name: [count]}
