"""Question answering: a question and a context become overlapping windows over the context.

The windows, and the characters that an answer's borders stand for, are those of transformers' QuestionAnsweringPipeline
(4.57): max_seq_len is 384, only the context is truncated, and answers are aligned to words.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence as Many
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ContextTooLong, InvalidInput
from .inputs import (
    Tensors,
    Text,
    column_pairs,
    decoded,
    encode_together,
    encoded,
    or_refusal,
    refuse_longer,
    refuse_tokens,
)
from .rows import SPECIAL, Row, RowEncoder, Sequence, sequence
from .settings import Settings

QUESTION = "question"
CONTEXT = "context"
DOC_STRIDE = "doc_stride"

MAX_WINDOW_LENGTH = 384
MAX_STRIDE = 128

# Tokens in all windows of a context, and in those of a request, whose rows are padded to the largest number of windows.
# The net computes each of them. A context of more bytes is not even counted: ordinary text has 3 to 5 bytes a token.
CONTEXT_TOKENS = 262_144
REQUEST_TOKENS = 1_572_864
CONTEXT_BYTES = 1_572_864


class WindowEncoder(RowEncoder):
    """Encodes (question, context), or (question, context, doc_stride).

    `doc_stride` is the number of tokens that two windows share.
    """

    fields: tuple[str, ...] = (QUESTION, CONTEXT)

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        super().__init__(tokenizer, settings)
        self._length = min(settings.max_length, MAX_WINDOW_LENGTH)
        self._stride = settings.doc_stride or min(self._length // 2, MAX_STRIDE)
        self._room = self._length - tokenizer.num_special_tokens_to_add(is_pair=True)
        self._counter = without_truncation(tokenizer)
        self._context = 1 if settings.question_first else 0
        self._strategy = "only_second" if settings.question_first else "only_first"
        self._truncating = threading.Lock()  # the tokenizer has one stride at a time
        self._share(self._stride)

    def items(self, tensors: Tensors) -> list[tuple[Text, Text, int]]:
        """Return the question, the context and the overlap of windows of each row.

        Raises InvalidInput, and ContextTooLong for more tokens than a request may have.
        """
        pairs = column_pairs(QUESTION, CONTEXT, tensors)
        strides = [self._stride] * len(pairs)
        if DOC_STRIDE in tensors:
            strides = tensors[DOC_STRIDE].ravel().tolist()
        if len(strides) != len(pairs):
            raise InvalidInput(f"{DOC_STRIDE} must hold one value a row, not {len(strides)} for {len(pairs)}")
        if wrong := [stride for stride in strides if not 0 <= stride < self._room]:
            raise InvalidInput(f"{DOC_STRIDE} is {wrong[0]}; windows may share 0 to {self._room - 1} tokens")
        most = min(CONTEXT_TOKENS, REQUEST_TOKENS // max(1, len(pairs)))
        for (question, context), stride in zip(pairs, strides, strict=True):
            self.pause()
            if refusal := or_refusal(self._refuse_long, encoded(question), encoded(context), stride, most):
                raise refusal
        return [(*pair, stride) for pair, stride in zip(pairs, strides, strict=True)]

    def _refuse_long(self, question: bytes, context: bytes, stride: int, most: int) -> None:
        """Raise ContextTooLong if the windows over a context have more than `most` tokens."""
        if len(context) > CONTEXT_BYTES:
            raise ContextTooLong(CONTEXT, len(context), "bytes", CONTEXT_BYTES)
        refuse_longer(QUESTION, question, self._length)
        room = self._room - self._count(decoded(QUESTION, question))
        advance = room - stride
        if advance > 0:  # otherwise the row is refused when it is encoded
            windows = 1 + max(0, -((room - self._count(decoded(CONTEXT, context))) // advance))
            if windows > 1 and windows * self._length > most:
                raise ContextTooLong(CONTEXT, windows * self._length, "tokens in its windows", most)

    def encode(self, items: Many[tuple[Text, Text] | tuple[Text, Text, int]]) -> list[Row | Exception]:
        """Return a row with a sequence for each window, or an error instead of it, for each item."""
        rows: list[Row | Exception] = [InvalidInput("")] * len(items)
        groups: dict[int, list[int]] = {}
        for at, item in enumerate(items):
            groups.setdefault(item[2] if len(item) > 2 else self._stride, []).append(at)
        for stride, members in groups.items():
            pairs = [(encoded(items[at][0]), encoded(items[at][1])) for at in members]
            with self._truncating:
                self._share(stride)
                made = encode_together(pairs, partial(self._check, stride), self._tokenize, self._row)
            for at, row in zip(members, made, strict=True):
                rows[at] = row
        return rows

    def _share(self, stride: int) -> None:
        """Make two windows share `stride` tokens from now on."""
        if (self._tokenizer.truncation or {}).get("stride") != stride:
            self._tokenizer.enable_truncation(
                self._length, stride=stride, strategy=self._strategy, direction=self._side
            )

    def _check(self, stride: int, question: bytes, context: bytes) -> tuple[str, str]:
        """Return the question and the context as texts."""
        if not question:
            raise InvalidInput(f"{QUESTION} is empty")
        if not context:
            raise InvalidInput(f"{CONTEXT} is empty")
        refuse_longer(QUESTION, question, self._length)
        texts = decoded(QUESTION, question), decoded(CONTEXT, context)
        self._refuse_crowding(stride, *texts)
        return texts

    def _refuse_crowding(self, stride: int, question: str, context: str) -> None:
        """Raise InvalidInput if the question leaves no room to advance over the context: the tokenizer would abort."""
        tokens = self._count(question)
        if tokens + stride < self._room:
            return
        if tokens + self._count(context) > self._room:
            if stride > self._stride and tokens < self._room:
                allowed = self._room - tokens - 1
                raise InvalidInput(f"{DOC_STRIDE} is {stride}; beside this {QUESTION} it may be {allowed} at most")
            allowed = self._room - stride - 1
            raise InvalidInput(
                f"{QUESTION} has {tokens} tokens; beside a {CONTEXT} that does not fit whole it may have {allowed}"
            )

    def _count(self, text: str) -> int:
        return len(self._counter.encode(text, add_special_tokens=False))

    def _tokenize(self, pairs: Many[tuple[str, str]]) -> Any:
        return self._tokenizer.encode_batch(pairs if self.settings.question_first else [pair[::-1] for pair in pairs])

    def _row(self, _question: str, _context: str, encoding: Any) -> Row:
        windows = [encoding, *encoding.overflowing]
        for window in windows:
            refuse_tokens(f"{QUESTION} or {CONTEXT}", window.ids, self.settings.vocab_size, self._tokenizer)
        return Row(tuple(map(self._window, windows)), 0)

    def _window(self, window: Any) -> Sequence:
        sequence_ids = np.array([-1 if each is None else each for each in window.sequence_ids], np.int32)
        in_context = sequence_ids == self._context
        own = np.array(window.offsets, np.int32).reshape(-1, 2)
        words = _word_places(window, own, in_context)
        own[~self._allowed(np.array(window.ids), sequence_ids)] = SPECIAL
        return sequence(window, self.settings, np.concatenate([own, words], axis=1))

    def _allowed(self, ids: NDArray[Any], sequence_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return where the pipeline lets an answer start or end: in the context, and at the classification token.

        With the context first (tokenizers that pad on the left) the pipeline masks nothing.
        """
        if not self.settings.question_first:
            return np.ones(ids.shape, np.bool_)
        allowed: NDArray[np.bool_] = sequence_ids == 1
        if self.settings.cls_id is not None:
            allowed |= ids == self.settings.cls_id
        return allowed


def without_truncation(tokenizer: Any) -> Any:
    """Return a tokenizer that truncates nothing and adds no special tokens; it shares the model (and its memory)."""
    from tokenizers import Tokenizer

    plain = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        plain.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        plain.pre_tokenizer = tokenizer.pre_tokenizer
    added = tokenizer.get_added_tokens_decoder()
    for token in (added[number] for number in sorted(added)):  # in this order, they get the same ids
        (plain.add_special_tokens if token.special else plain.add_tokens)([token])
    if plain.get_added_tokens_decoder().keys() != added.keys():  # the ids have gaps
        plain = Tokenizer.from_str(tokenizer.to_str())
        plain.no_truncation()
        plain.post_processor = None
    return plain


def _word_places(window: Any, own: NDArray[np.int32], in_context: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return, for each token, the characters of the context's word with its word number; SPECIAL if there is none.

    `own` has the characters of each token. A word that the window's border cuts has only its characters in the window.
    """
    places = np.full_like(own, SPECIAL)
    words = np.array([-1 if word is None else word for word in window.word_ids], np.int32)
    members = np.flatnonzero(in_context & (words >= 0))
    if members.size == 0:
        return places
    known = words[members]
    begins = np.full(int(words.max()) + 1, -1, np.int32)
    ends = begins.copy()
    # A later assignment overwrites an earlier one, so the first token of a word is written last.
    begins[known[::-1]] = own[members[::-1], 0]
    ends[known] = own[members, 1]
    has_word = np.flatnonzero(words >= 0)
    has_word = has_word[begins[words[has_word]] >= 0]
    places[has_word, 0] = begins[words[has_word]]
    places[has_word, 1] = ends[words[has_word]]
    return places
