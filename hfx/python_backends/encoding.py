"""The encoders of most tasks, and the functions that make an encoder from tokenizer.json and settings.json.

The token ids equal the ids of the checkpoint's own tokenizer with truncation to max_length. The encoder of question
answering is in windows.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import (
    HAS_AN_EMPTY_LABEL,
    HAS_NO_TOKENS,
    HAS_TOO_MANY_LABELS,
    IS_EMPTY,
    LEAVES_NO_ROOM,
    PAIR_HAS_NO_TOKENS,
    InvalidInput,
)
from .inputs import (
    BYTES_PER_TOKEN,
    MARGIN,
    Piece,
    Tensors,
    Text,
    characters_before,
    column,
    column_pairs,
    decoded,
    encode_together,
    encoded,
    or_refusal,
    refuse_longer,
    refuse_tokens,
    same_rows,
    sequence_length,
    settled,
    table,
)
from .labelled import labelled_encoder
from .long_texts import AS_BEFORE, Reading, Windows, refuse_cut
from .prompts import prompts
from .roles import RoleEncoder
from .rows import SPECIAL, Row, RowEncoder, Sequence, pausing, sequence, tensors
from .settings import Role, Settings
from .templates import MessageEncoder, TemplateEncoder
from .tokenizer_file import open_tokenizer
from .windows import WindowEncoder

__all__ = ["Encoder", "Row", "Settings", "make_encoder", "open_encoder", "pausing", "tensors"]

Item = TypeVar("Item")

TEXT = "text_input"
QUERY = "query"
LABELS = "candidate_labels"

# Each label costs a pass of the net; more than this is a mistake or an attack.
MAX_LABELS = 1000
PART = 16  # labels of a row that are tokenized at a time; 1,000 in one call take 0.1 s


class Encoder(Protocol):
    """The interface of the encoders of all tasks.

    An item is the input of one row: a text, (question, context), (text, labels), or (query, text).
    """

    settings: Settings
    fields: tuple[str, ...]

    def items(self, tensors: Tensors) -> list[Any]:
        """Return the items in the STRING tensors `fields` of a request. Raises InvalidInput."""

    def encode(self, items: Many[Any]) -> list[Row | Exception]:
        """Return a row, or an error instead of it, for each item; most encoders tokenize all items in one call."""


class TextEncoder(RowEncoder):
    """Encodes texts: text-classification, token-classification, feature-extraction."""

    fields: tuple[str, ...] = (TEXT,)

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        super().__init__(tokenizer, settings)
        self._needs_places = settings.task == "token-classification"
        tokenizer.enable_truncation(settings.max_length, direction=settings.truncation_side)
        self._windows = None if settings.stride is None else Windows(tokenizer, settings)

    def items(self, tensors: Tensors) -> list[tuple[Text, bytes, Reading]]:
        """Return each row's text, the prompt before it, and how a long text is read."""
        texts = column(TEXT, tensors)
        before = prompts(tensors, len(texts), self.settings)
        how = self._windows.readings(tensors, len(texts)) if self._windows else [AS_BEFORE] * len(texts)
        return list(zip(texts, before, how, strict=True))

    def encode(self, items: Many[Text | tuple[Text, bytes] | tuple[Text, bytes, Reading]]) -> list[Row | Exception]:
        """Return a row, or an error instead of it, for each text; one call of the tokenizer takes all texts.

        A text that is read in windows is tokenized again, as a whole.
        """
        rows = [item if isinstance(item, tuple) else (item, b"") for item in items]
        checked = [(encoded(text), *more) for text, *more in rows]
        return encode_together(checked, self._check, self._tokenize, self._row)

    def _check(self, text: bytes, prompt: bytes, reading: Reading = AS_BEFORE) -> tuple[bytes, Piece, int, Reading]:
        """Return the prompt with the text, the piece that is tokenized first, and the number of unpooled tokens."""
        unpooled = 0
        if prompt and not self.settings.pools_prompt:  # the tokens of the prompt, as sentence-transformers (6.2) counts
            encoding = self._tokenizer.encode(self._piece(prompt, BYTES_PER_TOKEN[-1]).text)
            unpooled = len(encoding) - int(encoding.special_tokens_mask[-1:] == [1])
        return prompt + text, self._piece(prompt + text, BYTES_PER_TOKEN[0]), unpooled, reading

    def _tokenize(self, checked: Many[tuple[bytes, Piece, int, Reading]]) -> Any:
        texts = [used.text for _, used, *_ in checked]
        # The fast call returns neither offsets nor words, and the check of a cut text needs words.
        if self._needs_places or any(used.cut for _, used, *_ in checked):
            return self._tokenizer.encode_batch(texts)
        return self._tokenizer.encode_batch_fast(texts)

    def _row(self, raw: bytes, used: Piece, unpooled: int, reading: Reading, encoding: Any) -> Row:
        if self._windows and reading.in_windows and (used.cut or encoding.overflowing):
            windows = self._windows.encodings(raw, reading)
            return Row(tuple(self._sequence(window, 0) for window in windows), 0)
        for bytes_per_token in BYTES_PER_TOKEN[1:]:
            if not used.cut or settled(encoding, self._side):
                break
            used = self._piece(raw, bytes_per_token)
            encoding = self._tokenizer.encode(used.text)
        if self._needs_places and used.cut and not settled(encoding, self._side) and self._cuts_word(encoding, used):
            raise InvalidInput(f"{TEXT} has a word without an end in {len(used.text)} characters. Divide it by blanks")
        dropped = max(self._dropped(encoding), int(used.cut))
        refuse_cut(reading, dropped, self.settings.max_length)
        shift = characters_before(raw, used) if self._needs_places else 0
        return Row((self._sequence(encoding, shift, unpooled),), dropped)

    def _sequence(self, encoding: Any, shift: int, unpooled: int = 0) -> Sequence:
        """Return the sequence of an encoding, in whose text the model's text begins `shift` characters earlier."""
        if len(encoding) == 0 and not self.settings.takes_empty:
            raise InvalidInput(HAS_NO_TOKENS % TEXT)
        refuse_tokens(TEXT, encoding.ids, self.settings.vocab_size, self._tokenizer)
        places = _places(encoding, shift) if self._needs_places else None
        return sequence(encoding, self.settings, places, unpooled)

    def _cuts_word(self, encoding: Any, used: Piece) -> bool:
        """Whether the last kept word (the first, if texts are cut at the beginning) may continue beyond the tokens."""
        masked = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        places = [place for place, special in masked if not special]
        if not places:
            return False
        right = self._side == "right"
        beside = used.text[max(end for _, end in places) :] if right else used.text[: min(start for start, _ in places)]
        return not any(map(str.isspace, beside))

    def _dropped(self, encoding: Any) -> int:
        if len(encoding) < self.settings.max_length:
            return 0
        return sum(len(part) - sum(part.special_tokens_mask) for part in encoding.overflowing)


def _places(encoding: Any, shift: int) -> NDArray[np.int32]:
    places = np.array(encoding.offsets, np.int32).reshape(-1, 2) + np.int32(shift)
    places[np.array(encoding.special_tokens_mask, np.bool_)] = SPECIAL
    return places


class PairEncoder(RowEncoder):
    """Encodes (query, text) for text ranking as one sequence; the longer text is truncated first.

    The token ids are those of sentence-transformers' CrossEncoder (6.2), which passes the pair to the checkpoint's own
    tokenizer with truncation `longest_first`. Here, query and text are tokenized without special tokens and joined
    afterwards: the tokenizer would also build every combination of the parts that it leaves out of a truncated pair.
    """

    fields: tuple[str, ...] = (QUERY, TEXT)

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        super().__init__(tokenizer, settings)
        self._room = settings.max_length - tokenizer.num_special_tokens_to_add(is_pair=True)
        self._template = Template(tokenizer.encode("a", "a"))

    def items(self, tensors: Tensors) -> list[tuple[Text, Text]]:
        """Return the queries (behind their prompts) and the texts of a request, a pair for each row."""
        pairs = column_pairs(QUERY, TEXT, tensors)
        before = prompts(tensors, len(pairs), self.settings)
        return [(prompt + encoded(query), text) for prompt, (query, text) in zip(before, pairs, strict=True)]

    def encode(self, items: Many[tuple[Text, Text]]) -> list[Row | Exception]:
        """Return a row, or an error instead of it, for each item; equal queries are tokenized once."""
        pairs = [(encoded(query), encoded(text)) for query, text in items]
        return encode_together(pairs, self._check, self._tokenize, self._row)

    def _check(self, query: bytes, text: bytes) -> tuple[bytes, str, Piece]:
        """Return the text, the query, and the piece of the text that is tokenized first."""
        refuse_longer(QUERY, query, self.settings.max_length)
        return text, decoded(QUERY, query), self._piece(text, BYTES_PER_TOKEN[0])

    def _tokenize(self, checked: Many[tuple[bytes, str, Piece]]) -> list[tuple[list[int], list[int]]]:
        """Return the token ids of each item's query and piece."""
        texts = list(dict.fromkeys(text for _, query, used in checked for text in (query, used.text)))
        ids = dict(zip(texts, self._ids(texts), strict=True))
        return [(ids[query], ids[used.text]) for _, query, used in checked]

    def _row(self, raw: bytes, _: str, used: Piece, ids: tuple[list[int], list[int]]) -> Row:
        first, second = ids
        # With this many tokens, a cut text keeps the same tokens as the whole text, and the longer of the two is known.
        enough = max(self._room, len(first)) + MARGIN
        for bytes_per_token in BYTES_PER_TOKEN[1:]:
            if not used.cut or len(second) >= enough:
                break
            used = self._piece(raw, bytes_per_token)
            [second] = self._ids([used.text])
        kept = longest_first(len(first), len(second), self._room)
        joined = self._template.joined(self._kept(first, kept[0]), self._kept(second, kept[1]))
        if not joined.ids:
            raise InvalidInput(PAIR_HAS_NO_TOKENS % (QUERY, TEXT))
        refuse_tokens(f"{QUERY} or {TEXT}", joined.ids, self.settings.vocab_size, self._tokenizer)
        types = joined.type_ids if "token_type_ids" in self.settings.inputs else []
        dropped = len(first) + len(second) - sum(kept)
        return Row((Sequence(joined.ids, types),), max(dropped, int(used.cut)))

    def _kept(self, ids: list[int], count: int) -> list[int]:
        return ids[:count] if self._side == "right" else ids[len(ids) - count :]


class Template:
    """The special tokens and type ids around a pair, taken from `example`, the Encoding of a pair."""

    def __init__(self, example: Any) -> None:
        self._ids, self._types = list(example.ids), list(example.type_ids)
        places = list(example.sequence_ids)
        ends = len(places) - places[::-1].index(0), len(places) - places[::-1].index(1)
        self._borders = places.index(0), ends[0], places.index(1), ends[1]

    def joined(self, first: list[int], second: list[int]) -> Sequence:
        """Return the sequence of a pair, made from the token ids of its two texts."""
        begin, _, middle, _ = self._borders
        first_types, second_types = [self._types[begin]] * len(first), [self._types[middle]] * len(second)
        return Sequence(self._around(self._ids, first, second), self._around(self._types, first_types, second_types))

    def _around(self, example: list[int], first: list[int], second: list[int]) -> list[int]:
        begin, end, middle, last = self._borders
        return [*example[:begin], *first, *example[end:middle], *second, *example[last:]]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many of `first` and `second` tokens fit into `room`: the shorter text keeps up to half of it."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)


class HypothesisEncoder(RowEncoder):
    """Encodes (text, labels) for zero-shot classification: a premise/hypothesis pair for each label.

    The pairs are those of transformers' ZeroShotClassificationPipeline (4.57): only the premise is truncated.
    """

    fields: tuple[str, ...] = (TEXT, LABELS)

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        super().__init__(tokenizer, settings)
        tokenizer.enable_truncation(settings.max_length, strategy="only_first", direction=settings.truncation_side)

    def items(self, tensors: Tensors) -> list[tuple[Text, Many[Text]]]:
        """Return the texts and labels of a request, a pair for each row."""
        same_rows(TEXT, LABELS, tensors)
        return list(zip(column(TEXT, tensors), table(LABELS, tensors), strict=True))

    def encode(self, items: Many[tuple[Text, Many[Text]]]) -> list[Row | Exception]:
        """Return a row with a sequence for each label, or an error instead of it, for each item."""
        return [or_refusal(self._row, encoded(text), [encoded(label) for label in labels]) for text, labels in items]

    def _hypotheses(self, labels: Many[bytes]) -> list[str]:
        if not labels:
            raise InvalidInput(f"{LABELS} is empty: send at least one label")
        if len(labels) > MAX_LABELS:
            raise InvalidInput(HAS_TOO_MANY_LABELS % (LABELS, len(labels), MAX_LABELS))
        return [self.settings.hypothesis_template.format(self._label(raw)) for raw in labels]

    def _label(self, raw: bytes) -> str:
        refuse_longer(LABELS, raw, self.settings.max_length)
        label = decoded(LABELS, raw)
        if not label.strip():
            raise InvalidInput(HAS_AN_EMPTY_LABEL % LABELS)
        return label

    def _row(self, raw: bytes, labels: Many[bytes]) -> Row:
        hypotheses = self._hypotheses(labels)
        if not raw:
            raise InvalidInput(IS_EMPTY % TEXT)
        used, encodings = self._pairs(raw, hypotheses)
        sequences = list[Sequence]()
        for part in _parts(encodings):
            self.pause()
            for encoding in part:
                refuse_tokens(f"{TEXT} or {LABELS}", encoding.ids, self.settings.vocab_size, self._tokenizer)
                sequences.append(sequence(encoding, self.settings))
        return Row(tuple(sequences), max(max(map(self._dropped, encodings)), int(used.cut)))

    def _pairs(self, raw: bytes, hypotheses: list[str]) -> tuple[Piece, list[Any]]:
        """Return a piece of the text that is large enough, and its encodings with every hypothesis."""
        for bytes_per_token in BYTES_PER_TOKEN:
            used = self._piece(raw, bytes_per_token)
            encodings = list[Any]()
            for part in _parts(hypotheses):
                self.pause()
                encodings += self._tokenize(used.text, part)
            most = max(encodings, key=lambda each: sequence_length(each, 0))  # beside the shortest label
            if not used.cut or settled(most, self._side):
                break
        return used, encodings

    def _tokenize(self, premise: str, hypotheses: Many[str]) -> list[Any]:
        try:
            return self._tokenizer.encode_batch([(premise, each) for each in hypotheses])  # type: ignore[no-any-return]
        except Exception as error:
            if "too short" not in str(error):
                raise
            raise InvalidInput(LEAVES_NO_ROOM % (LABELS, self.settings.max_length)) from None

    def _dropped(self, encoding: Any) -> int:
        if len(encoding) < self.settings.max_length:
            return 0
        return sum(sequence_length(part, 0) for part in encoding.overflowing)


def _parts(whole: Many[Item]) -> Iterator[Many[Item]]:
    return (whole[at : at + PART] for at in range(0, len(whole), PART))


def open_encoder(folder: Path | str) -> Encoder:
    """Return the encoder for the files `settings.json` and `tokenizer.json` in `folder`. Raises ValueError, OSError."""
    return make_encoder(Path(folder) / "tokenizer.json", Settings.read(Path(folder) / "settings.json"))


def make_encoder(tokenizer_json: Path | str, settings: Settings) -> Encoder:
    """Return the encoder for a tokenizer file and settings, which need not be in a file yet."""
    tokenizer = open_tokenizer(tokenizer_json)
    if settings.labelled:
        return labelled_encoder(tokenizer, settings, Path(tokenizer_json).parent)
    if settings.roles:
        texts = {name: _of_role(str(tokenizer_json), settings, role) for name, role in settings.roles.items()}
        return RoleEncoder(texts, settings)
    if settings.task == "question-answering":
        return WindowEncoder(tokenizer, settings)
    if settings.task == "zero-shot-classification":
        return HypothesisEncoder(tokenizer, settings)
    if settings.task == "text-ranking":
        return TemplateEncoder(tokenizer, settings) if settings.template else PairEncoder(tokenizer, settings)
    return MessageEncoder(tokenizer, settings) if settings.template else TextEncoder(tokenizer, settings)


def _of_role(tokenizer_json: str, settings: Settings, role: Role) -> TextEncoder:
    tokenizer = open_tokenizer(tokenizer_json)
    if role.looks_up:
        tokenizer.post_processor = None
    length = role.length - (role.marker is not None)
    return TextEncoder(tokenizer, replace(settings, max_length=length, roles=None, takes_empty=role.looks_up))
