"""The typed results of all tasks, and the functions that decode them from output tensors.

Tensors have a batch dimension of 1, as each text is sent as a request. The decoders raise ServerError for a missing or
malformed tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from hfx import names
from hfx.answering import Piece as Piece
from hfx.client.errors import MALFORMED
from hfx.errors import RequestCancelled, ServerError, UsageError
from hfx.python_backends.generation.pieces import Token as Token

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hfx.client.tensors import Array, Tensors

    Vectors = npt.NDArray[np.float32]

Value = TypeVar("Value")
CANCELLED = "cancelled"


@dataclass(frozen=True)
class Prediction:
    """A label and its score: a probability unless the model was exported without an activation."""

    label: str
    score: float


@dataclass(frozen=True)
class Classification:
    """The best labels of a text, best first.

    `truncated_tokens` is the least number of tokens that did not fit into the model (0: the whole text was used).
    """

    predictions: tuple[Prediction, ...]
    truncated_tokens: int = 0

    @property
    def label(self) -> str:
        """The label with the highest score."""
        return self.predictions[0].label

    @property
    def score(self) -> float:
        """The score of the best label."""
        return self.predictions[0].score


@dataclass(frozen=True)
class Entity:
    """A labelled part of a text: the characters `text[start:end]`."""

    entity: str
    score: float
    start: int
    end: int
    word: str


@dataclass(frozen=True)
class Entities:
    """The entities of a text in order of appearance; `truncated_tokens` as in Classification."""

    entities: tuple[Entity, ...]
    truncated_tokens: int = 0


@dataclass(frozen=True)
class Fill:
    """A token in place of a mask: its probability, its id, its text, and the whole text with the token filled in."""

    score: float
    token: int
    token_str: str
    sequence: str


@dataclass(frozen=True)
class Fills:
    """The best tokens for each mask of a text, best first; `truncated_tokens` as in Classification."""

    masks: tuple[tuple[Fill, ...], ...]
    truncated_tokens: int = 0


@dataclass(frozen=True)
class Answer:
    """The best answer in a context: `context[start:end]`, with its score from 0 to 1; "" if there is no answer.

    If `top_k` is more than 1, `others` has the next best answers.
    """

    answer: str
    score: float
    start: int
    end: int
    truncated_tokens: int = 0
    others: tuple[Answer, ...] = ()


@dataclass(frozen=True, eq=False)
class Embedding:
    """The vector of a text, float32 of shape [d]; `truncated_tokens` as in Classification."""

    vector: npt.NDArray[np.float32]
    truncated_tokens: int = 0


@dataclass(frozen=True)
class Rank:
    """The score of one of several texts for a query; `index` is the position of the text, from 0.

    The score is a probability or a logit, as the model was exported. With raw scores it is always a logit.
    """

    index: int
    score: float
    truncated_tokens: int = 0


@dataclass(frozen=True)
class Generation:
    """A generated text, or the joined pieces of a stream.

    `finish_reason` is "stop", "length", or "cancelled" for a stream that its reader has cancelled.
    """

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    truncated_tokens: int = 0
    log_probs: tuple[float, ...] = ()
    tokens: tuple[Token, ...] = ()
    prompt_tokens: tuple[Token, ...] = ()


def decode_classification(outputs: Tensors) -> Classification:
    """Decode `label` BYTES [1, k] and `score` FP32 [1, k]."""
    labels, scores = _tensor(outputs, names.LABEL).ravel(), _tensor(outputs, names.SCORE).ravel()
    if not labels.size or labels.size != scores.size:
        raise ServerError(
            f"The model answered with {labels.size} labels and {scores.size} scores.",
            "Export it again, or ask its author.",
        )
    pairs = zip(labels.tolist(), scores.tolist(), strict=True)
    predictions = tuple(Prediction(_label(label), float(score)) for label, score in pairs)
    return Classification(predictions, _truncated_tokens(outputs))


def _label(value: object) -> str:
    if not isinstance(value, bytes):
        raise ServerError(f"The model's tensor {names.LABEL!r} holds no text.")
    return value.decode("utf-8", "replace")


def decode_entities(outputs: Tensors) -> Entities:
    """Decode `entities` BYTES [1, 1], a JSON list of {entity, score, start, end, word}."""
    try:
        rows = json.loads(_text(outputs, names.ENTITIES))
        entities = tuple(
            Entity(str(row["entity"]), float(row["score"]), int(row["start"]), int(row["end"]), str(row["word"]))
            for row in rows
        )
    except MALFORMED as error:
        raise ServerError(f"The model's entities can't be read: {error!r}.") from error
    return Entities(entities, _truncated_tokens(outputs))


def decode_fills(outputs: Tensors) -> Fills:
    """Decode `fills` BYTES [1, 1], a JSON list with a list of {score, token, token_str, sequence} for each mask."""
    try:
        masks = tuple(
            tuple(Fill(float(r["score"]), int(r["token"]), str(r["token_str"]), str(r["sequence"])) for r in rows)
            for rows in json.loads(_text(outputs, names.FILLS))
        )
    except MALFORMED as error:
        raise ServerError(f"The model's fills can't be read: {error!r}.") from error
    return Fills(masks, _truncated_tokens(outputs))


def decode_answer(outputs: Tensors) -> Answer:
    """Decode `answer` BYTES [1, 1], `score` FP32 [1, 1], `start` and `end` INT32 [1, 1]."""
    return Answer(
        answer=_text(outputs, names.ANSWER),
        score=_value(outputs, names.SCORE, float),
        start=_value(outputs, names.START, int),
        end=_value(outputs, names.END, int),
        truncated_tokens=_truncated_tokens(outputs),
    )


def decode_answers(outputs: Tensors) -> Answer:
    """Decode `answers` BYTES [1, 1], a JSON list of {answer, score, start, end}, best first."""
    try:
        best, *others = (
            Answer(str(row["answer"]), float(row["score"]), int(row["start"]), int(row["end"]))
            for row in json.loads(_text(outputs, names.ANSWERS))
        )
    except MALFORMED as error:
        raise ServerError(f"The model's answers can't be read: {error!r}.") from error
    return replace(best, truncated_tokens=_truncated_tokens(outputs), others=tuple(others))


def decode_embedding(outputs: Tensors) -> Embedding:
    """Decode `embedding` FP32 [1, d]. Raises UsageError for vectors of tokens."""
    array = _tensor(outputs, names.EMBEDDING)
    if array.ndim == 3:
        raise UsageError(
            "The model has a vector for each token, not one for the text.",
            "Use embed_tokens() of hfx.client, or /embed_all of text-embeddings-inference's API.",
        )
    if array.ndim != 2 or array.shape[0] != 1:
        raise ServerError(f"The model's embedding has the shape {list(array.shape)} instead of [1, d].")
    return Embedding(array[0].astype("float32", copy=False), _truncated_tokens(outputs))


def decode_token_embeddings(outputs: Tensors) -> Embedding:
    """Decode `embedding` FP32 [1, n, d] and `input_tokens` INT32 [1, 1] to the vectors of a text's tokens, [tokens, d].

    Raises UsageError if the model has one vector for a text.
    """
    array = _tensor(outputs, names.EMBEDDING)
    if array.ndim != 3 or array.shape[0] != 1:
        raise UsageError("The model has one vector for a text, not one for each token.", "Use embed().")
    tokens = _value(outputs, names.INPUT_TOKENS, int)
    return Embedding(array[0, :tokens].astype("float32", copy=False), _truncated_tokens(outputs))


def decode_rank(outputs: Tensors, index: int) -> Rank:
    """Decode `score` FP32 [1, 1] of the text with this index. Raises UsageError for scores of several labels."""
    if (count := _tensor(outputs, names.SCORE).size) > 1:
        raise UsageError(
            f"The model has scores of {count} labels for a pair, by which no text is ranked.",
            "Use predict() of hfx.client, /predict of text-embeddings-inference's API, or plain infer requests.",
        )
    return Rank(index, _value(outputs, names.SCORE, float), _truncated_tokens(outputs))


def max_sim(query: npt.ArrayLike, document: npt.ArrayLike) -> float:
    """ColBERT's score: the sum over the query's vectors of their largest dot product with a vector of the document.

    `query` is [n, d], `document` [m, d]. If either is empty, the score is -n, the least for vectors of length 1.
    """
    import numpy as np

    a, b = np.asarray(query), np.asarray(document)
    return float((a @ b.T).max(axis=1).sum() if len(a) and len(b) else -len(a))


def decode_max_sim(outputs: Tensors, query: Vectors, index: int) -> Rank:
    """Decode the vectors of a text's tokens, and return the MaxSim score of the text with this index."""
    document = decode_token_embeddings(outputs)
    return Rank(index, max_sim(query, document.vector), document.truncated_tokens)


def decode_scores(outputs: Tensors) -> Vectors:
    """Decode `score` FP32 [1, n], the scores of the labels."""
    array = _tensor(outputs, names.SCORE)
    if array.ndim != 2 or array.shape[0] != 1:
        raise ServerError(f"The model's scores have the shape {list(array.shape)} instead of [1, n].")
    scores: Vectors = array[0].astype("float32", copy=False)
    return scores


def best_first(ranks: Iterable[Rank]) -> list[Rank]:
    """Return `ranks` by descending score; texts with equal scores keep their order."""
    return sorted(ranks, key=lambda rank: (-rank.score, rank.index))


def decode_piece(outputs: Tensors) -> Piece:
    """Decode `text_output` and `finish_reason` BYTES [1, 1], counts INT32 [1, 1] and `output_log_probs` FP32 [1, n].

    With `logprobs`, also decode `token_ids` INT32, `token_texts` BYTES, `token_log_probs` FP32 and `token_special`
    BOOL [1, n, 1 + k]; with `prompt_logprobs`, the same of the prompt's tokens (`prompt_log_probs`, `prompt_token_ids`
    …). Raises RequestCancelled if the server ended the request.
    """
    log_probs = tuple(outputs[names.OUTPUT_LOG_PROBS].ravel().tolist()) if names.OUTPUT_LOG_PROBS in outputs else ()
    piece = Piece(
        text=_text(outputs, names.TEXT_OUTPUT),
        finish_reason=_text(outputs, names.FINISH_REASON),
        input_tokens=_value(outputs, names.INPUT_TOKENS, int),
        output_tokens=_value(outputs, names.OUTPUT_TOKENS, int),
        truncated_tokens=_truncated_tokens(outputs),
        log_probs=log_probs,
        tokens=_tokens(outputs, names.TOKEN_TABLES, names.OUTPUT_LOG_PROBS),
        prompt_tokens=_tokens(outputs, names.PROMPT_TOKEN_TABLES, names.PROMPT_LOG_PROBS),
    )
    if piece.finish_reason == CANCELLED:
        raise RequestCancelled(
            f"The server ended the request after {piece.output_tokens} tokens.", "Send it again; see the server's log."
        )
    return piece


def _tokens(outputs: Tensors, tables: Sequence[str], log_probs: str) -> tuple[Token, ...]:
    """Return the tokens in `tables` (names.TOKEN_TABLES), each with the most probable tokens at its position.

    The tensor `log_probs` has a value for each token. An alternative with the id -1 is no token.
    """
    count = outputs[log_probs].size if log_probs in outputs else 0
    if tables[0] not in outputs or not count:
        return ()
    columns = [_tensor(outputs, name).ravel().tolist() for name in tables]
    size = len(columns[0])
    if any(len(column) != size for column in columns) or size % count:
        raise ServerError(f"The model answered with {size} ids of {count} tokens.", "Export it again.")
    columns[1] = [text.decode("utf-8", "replace") for text in columns[1]]
    found = [Token(*each) for each in zip(*columns, strict=True)]
    rows = (found[at : at + size // count] for at in range(0, size, size // count))
    return tuple(replace(token, top=tuple(each for each in top if each.id >= 0)) for token, *top in rows)


def decode_generation(outputs: Tensors) -> Generation:
    """Decode the tensors of `decode_piece` for a whole answer."""
    return joined([decode_piece(outputs)])


def joined(pieces: Sequence[Piece]) -> Generation:
    """Join `pieces` to a Generation. It counts as cancelled if the last piece has no `finish_reason`."""
    last = pieces[-1] if pieces else Piece("")
    return Generation(
        text="".join(piece.text for piece in pieces),
        finish_reason=last.finish_reason or CANCELLED,
        input_tokens=last.input_tokens,
        output_tokens=last.output_tokens,
        truncated_tokens=last.truncated_tokens,
        log_probs=tuple(one for piece in pieces for one in piece.log_probs),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        prompt_tokens=tuple(token for piece in pieces for token in piece.prompt_tokens),
    )


def _tensor(outputs: Tensors, name: str) -> Array:
    """Return the tensor `name`. Raises ServerError if the answer lacks it."""
    if name not in outputs:
        raise ServerError(
            f"The model's answer has no tensor {name!r} but {', '.join(sorted(outputs)) or 'none at all'}.",
            "Is it a model for this task? `hfx list` shows the tasks.",
        )
    return outputs[name]


def _value(outputs: Tensors, name: str, kind: type[Value]) -> Value:
    """Return the only value of tensor `name`. Raises ServerError unless it is a single value of type `kind`."""
    array = _tensor(outputs, name)
    value = array.item() if array.size == 1 else None
    if not isinstance(value, kind):
        raise ServerError(
            f"The model's tensor {name!r} is not one value of type {kind.__name__}: {array.tolist()!r:.80}."
        )
    return value


def _text(outputs: Tensors, name: str) -> str:
    return _value(outputs, name, bytes).decode("utf-8", "replace")


def _truncated_tokens(outputs: Tensors) -> int:
    """Return the number of tokens of the text that were left out; 0 if the model does not count them."""
    return _value(outputs, names.TRUNCATED_TOKENS, int) if names.TRUNCATED_TOKENS in outputs else 0
