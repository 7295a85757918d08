"""The encoders of models that read a text behind the labels of a request (GLiNER, GLiClass), and their masks.

A sequence has the labels, each behind a marker, a separator, and the text. Its tokens are those that gliner (0.2) or
gliclass (0.1) make. The mask of a token says what it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Many
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .errors import (
    HAS_AN_EMPTY_LABEL,
    HAS_TOO_MANY_LABELS,
    IS_EMPTY,
    IS_MISSING,
    LEAVES_NO_ROOM,
    ContextTooLong,
    InvalidInput,
)
from .inputs import (
    BYTES_PER_TOKEN,
    Tensors,
    Text,
    column,
    decoded,
    encoded,
    or_refusal,
    refuse_longer,
    refuse_tokens,
    same_rows,
    settled,
    table,
)
from .label_net import LabelNet
from .long_texts import Reading, readings
from .rows import SPECIAL, Row, RowEncoder, Sequence
from .settings import Settings
from .windows import CONTEXT_BYTES

# Masks: of the token whose state stands for a word (or the text), of that which stands for a label, of the others of a
# label whose mean does, and of the others of the text. All other tokens have 1.
WORD, LABEL, MORE, TEXT = 2, 3, 4, 5
TEXT_INPUT, LABELS, THRESHOLD = "text_input", "candidate_labels", "threshold"
MOST_LABELS = 100
LONGEST_LABEL = 256  # tokens, of BYTES_PER_TOKEN[0] bytes; what is kept of earlier labels is bounded by it
CACHED = 256  # label sets whose tokens are kept
LEAST_ROOM = 16  # tokens of a text beside its labels
WORDS = re.compile(r"\w+(?:[-_]\w+)*|\S")  # gliner's WhitespaceTokenSplitter

Prompt = tuple[list[int], list[int]]  # ids and masks
Word = tuple[int, int, list[int]]  # the characters from start to end, and the ids of its tokens


class LabelledEncoder(RowEncoder):
    """Encodes (text, labels): a sequence for each window over the words of the text, each behind all labels."""

    fields: tuple[str, ...] = (TEXT_INPUT, LABELS)

    def __init__(self, tokenizer: Any, settings: Settings, folder: Path) -> None:
        super().__init__(tokenizer, settings)
        assert settings.labelled is not None
        self._labelled = settings.labelled
        self._net = None if settings.labelled.markers else LabelNet(folder, settings.labelled.label_tokens)
        example = tokenizer.encode(["a"], is_pretokenized=True)
        own = [at for at, special in enumerate(example.special_tokens_mask) if not special]
        self._first, self._last = example.ids[: own[0]], example.ids[own[-1] + 1 :]
        self._prompt = lru_cache(CACHED)(self._make_prompt)

    def items(self, tensors: Tensors) -> list[tuple[Text, tuple[bytes, ...], Reading]]:
        """Return the text and the labels of each row, and how a long text is read."""
        same_rows(TEXT_INPUT, LABELS, tensors)
        texts = column(TEXT_INPUT, tensors)
        labels = [tuple(row) for row in table(LABELS, tensors)]
        if THRESHOLD in tensors and not np.all((tensors[THRESHOLD] > 0) & (tensors[THRESHOLD] <= 1)):
            raise InvalidInput(f"{THRESHOLD} must be a number above 0, and at most 1")
        how = readings(tensors, len(texts), self.settings, self.settings.max_length)
        return list(zip(texts, labels, how, strict=True))

    def encode(self, items: Many[tuple[Text, Many[Text], Reading]]) -> list[Row | Exception]:
        """Return a row, or an error instead of it, for each item."""
        return [or_refusal(self._row, encoded(text), tuple(map(encoded, labels)), how) for text, labels, how in items]

    def _row(self, raw: bytes, labels: tuple[bytes, ...], reading: Reading) -> Row:
        prompt = self._prompt(labels)
        if len(raw) > CONTEXT_BYTES:
            raise ContextTooLong(TEXT_INPUT, len(raw), "bytes", CONTEXT_BYTES)
        room = self.settings.max_length - len(prompt[0]) - len(self._first) - len(self._last)
        words, whole = self._words(decoded(TEXT_INPUT, raw), reading, room)
        windows = self._windows(words, reading, room)
        if not reading.in_windows:
            whole, windows = whole and len(windows) == 1, windows[:1]
        if reading.long == "error" and not whole:
            raise ContextTooLong(TEXT_INPUT, len(words), "words or more", len(windows[0]))
        if len(windows) > 1 and len(windows) * self.settings.max_length > reading.most:
            raise ContextTooLong(
                TEXT_INPUT, len(windows) * self.settings.max_length, "tokens in its windows", reading.most
            )
        vectors = self._net.vectors(labels) if self._net else None
        return Row(tuple(self._sequence(prompt, window) for window in windows), 0 if whole else 1, vectors)

    def _words(self, text: str, reading: Reading, room: int) -> tuple[list[Word], bool]:
        """Return the words of a text that have tokens, and whether these are all of its words."""
        most = None if reading.in_windows else self._labelled.words
        found = list(islice(WORDS.finditer(text), most and most + 1))
        if not found:
            raise InvalidInput(IS_EMPTY % TEXT_INPUT)
        whole = most is None or len(found) <= most
        spans = [match.span() for match in found[:most]]
        encoding = self._tokenizer.encode(
            [text[start:end] for start, end in spans], is_pretokenized=True, add_special_tokens=False
        )
        refuse_tokens(TEXT_INPUT, encoding.ids, self.settings.vocab_size, self._tokenizer)
        words = [(start, end, list[int]()) for start, end in spans]
        for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
            if len(words[word][2]) < room:
                words[word][2].append(token)
        if not (words := [word for word in words if word[2]]):
            raise InvalidInput(f"{TEXT_INPUT} has no tokens")
        return words, whole

    def _windows(self, words: list[Word], reading: Reading, room: int) -> list[list[Word]]:
        """Return runs of words that fit `room` tokens; two that follow each other share words of `stride` tokens."""
        windows, start = list[list[Word]](), 0
        while True:
            self.pause()
            end, tokens = start, 0
            while end < len(words) and end - start < self._labelled.words and tokens + len(words[end][2]) <= room:
                tokens += len(words[end][2])
                end += 1
            windows.append(words[start:end])
            if end == len(words):
                return windows
            shared, back = 0, end
            while back - 1 > start and shared + len(words[back - 1][2]) <= min(reading.stride, room // 2):
                back -= 1
                shared += len(words[back][2])
            start = back

    def _sequence(self, prompt: Prompt, words: list[Word]) -> Sequence:
        ids, mask = [*self._first, *prompt[0]], [*[1] * len(self._first), *prompt[1]]
        places = [(SPECIAL, SPECIAL)] * len(ids)
        for start, end, tokens in words:
            at = 0 if self._labelled.first_tokens else len(tokens) - 1
            ids += tokens
            mask += [WORD if each == at else 1 for each in range(len(tokens))]
            places += [(start, end) if each == at else (SPECIAL, SPECIAL) for each in range(len(tokens))]
        ids += self._last
        mask += [1] * len(self._last)
        places += [(SPECIAL, SPECIAL)] * len(self._last)
        types = [0] * len(ids) if "token_type_ids" in self.settings.inputs else []
        return Sequence(ids, types, np.array(places, np.int32).reshape(-1, 2), mask)

    def _make_prompt(self, labels: tuple[bytes, ...]) -> Prompt:
        """Return the tokens of the labels. Raises InvalidInput."""
        check_labels(labels, self._labelled.markers)
        if self._net:
            return [], []
        marker, separator = self._labelled.markers
        ids, mask = list[int](), list[int]()
        for label in labels:
            encoding = self._tokenizer.encode([marker, label.decode()], is_pretokenized=True, add_special_tokens=False)
            begin = len(ids) + (0 if self._labelled.embeds_marker else 1)
            ids += encoding.ids
            mask += [1] * len(encoding.ids)
            mask[min(begin, len(ids) - 1)] = LABEL
        end = self._tokenizer.encode([separator], is_pretokenized=True, add_special_tokens=False).ids
        refuse_tokens(LABELS, ids, self.settings.vocab_size, self._tokenizer)
        if len(ids) + len(end) + len(self._first) + len(self._last) + LEAST_ROOM > self.settings.max_length:
            raise InvalidInput(
                f"{LABELS} has {len(ids)} tokens, which leave no room for a text in {self.settings.max_length}"
            )
        return ids + end, mask + [1] * len(end)


class LabelledTextEncoder(RowEncoder):
    """Encodes (text, labels): one sequence of the labels and the text, tokenized together and cut at the end."""

    fields: tuple[str, ...] = (TEXT_INPUT, LABELS)

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        super().__init__(tokenizer, settings)
        assert settings.labelled is not None
        self._labelled = settings.labelled
        self._marker, self._separator = map(tokenizer.token_to_id, settings.labelled.markers)
        tokenizer.enable_truncation(settings.max_length)

    def items(self, tensors: Tensors) -> list[tuple[Text, Many[Text]]]:
        """Return the text and the labels of each row."""
        same_rows(TEXT_INPUT, LABELS, tensors)
        return list(zip(column(TEXT_INPUT, tensors), table(LABELS, tensors), strict=True))

    def encode(self, items: Many[tuple[Text, Many[Text]]]) -> list[Row | Exception]:
        """Return a row, or an error instead of it, for each item."""
        return [or_refusal(self._row, encoded(text), list(map(encoded, labels))) for text, labels in items]

    def _row(self, raw: bytes, labels: Many[bytes]) -> Row:
        check_labels(labels, self._labelled.markers)
        if not raw.strip():
            raise InvalidInput(IS_EMPTY % TEXT_INPUT)
        marker, separator = self._labelled.markers
        prompt = "".join(marker + label.decode() for label in labels) + separator
        for bytes_per_token in BYTES_PER_TOKEN:
            used = self._piece(raw, bytes_per_token)
            encoding = self._tokenizer.encode(prompt + used.text)
            if not used.cut or settled(encoding, "right"):
                break
        refuse_tokens(f"{TEXT_INPUT} or {LABELS}", encoding.ids, self.settings.vocab_size, self._tokenizer)
        mask = self._mask(encoding.ids, len(labels))
        types = encoding.type_ids if "token_type_ids" in self.settings.inputs else []
        dropped = sum(len(part) - sum(part.special_tokens_mask) for part in encoding.overflowing)
        return Row((Sequence(encoding.ids, types, mask=mask),), max(dropped, int(used.cut)))

    def _mask(self, ids: list[int], labels: int) -> list[int]:
        """Return the masks of a sequence; the first `labels` markers are those of the labels. Raises InvalidInput."""
        if self._separator not in ids:
            raise InvalidInput(LEAVES_NO_ROOM % (LABELS, self.settings.max_length))
        text, shift, mask = ids.index(self._separator), int(not self._labelled.embeds_marker), [1] * len(ids)
        last = text if self._labelled.reads_separator else len(ids)
        markers = [at for at, token in enumerate(ids) if token == self._marker]  # a text may spell them, too
        for place, end in list(zip(markers, [*markers[1:], last], strict=True))[:labels]:
            end = min(end, last)
            if self._labelled.averaged:
                mask[place + shift : end] = [MORE] * (end - place - shift)
            mask[place + shift] = LABEL
        if self._labelled.reads_separator:
            mask[text:] = [TEXT] * (len(ids) - text)
        mask[text if self._labelled.reads_separator else 0] = WORD
        return mask


def labelled_encoder(tokenizer: Any, settings: Settings, folder: Path) -> LabelledEncoder | LabelledTextEncoder:
    """Return the encoder of a model that is labelled; `folder` has the net of its labels, if it has one."""
    if settings.labelled is not None and settings.labelled.words:
        return LabelledEncoder(tokenizer, settings, folder)
    return LabelledTextEncoder(tokenizer, settings)


def check_labels(labels: Many[bytes], markers: Many[str]) -> None:
    """Raise InvalidInput unless there are 1 to MOST_LABELS different labels, without `markers` in them."""
    if not labels:
        raise InvalidInput(IS_MISSING % LABELS)
    if len(labels) > MOST_LABELS:
        raise InvalidInput(HAS_TOO_MANY_LABELS % (LABELS, len(labels), MOST_LABELS))
    seen = set[str]()
    for raw in labels:
        refuse_longer(LABELS, raw, LONGEST_LABEL)
        label = decoded(LABELS, raw)
        if not label.strip():
            raise InvalidInput(HAS_AN_EMPTY_LABEL % LABELS)
        if marker := next((each for each in markers if each in label), None):
            raise InvalidInput(f"{LABELS} has a label with {marker!r}, by which the model divides labels")
        if label in seen:
            raise InvalidInput(f"{LABELS} has the label {label[:60]!r} twice")
        seen.add(label)
