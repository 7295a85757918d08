"""Zero-shot classification: a text and its candidate labels become one premise/hypothesis pair a label.

The pairs are those of transformers' ZeroShotClassificationPipeline (4.57): only the premise is truncated.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

from .inputs import (
    BYTES_PER_TOKEN,
    InvalidInput,
    Piece,
    Tensors,
    Text,
    column,
    decoded,
    encoded,
    or_refusal,
    piece,
    refuse_longer,
    refuse_tokens,
    same_rows,
    sequence_length,
    settled,
    table,
)
from .rows import Row, sequence
from .settings import Settings

TEXT = "text_input"
LABELS = "candidate_labels"

# Each label costs a pass of the net; more than this is a mistake or an attack.
MAX_LABELS = 1000

Item = tuple[Text, Many[Text]]


class HypothesisEncoder:
    """Encodes (text, labels); `tokenizer` is a tokenizers.Tokenizer that the encoder sets up for itself."""

    fields: tuple[str, ...] = (TEXT, LABELS)

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self._side = settings.truncation_side
        tokenizer.no_padding()
        tokenizer.enable_truncation(settings.max_length, strategy="only_first", direction=settings.truncation_side)

    def items(self, tensors: Tensors) -> list[Item]:
        """The texts and labels of a request, a pair a row."""
        same_rows(TEXT, LABELS, tensors)
        return list(zip(column(TEXT, tensors), table(LABELS, tensors), strict=True))

    def encode(self, items: Many[Item]) -> list[Row | InvalidInput]:
        """One row of as many sequences as labels (or the reason why there is none) for each item."""
        return [or_refusal(self._row, encoded(text), [encoded(label) for label in labels]) for text, labels in items]

    def _hypotheses(self, labels: Many[bytes]) -> list[str]:
        if not labels:
            raise InvalidInput(f"{LABELS} is empty: send at least one label")
        if len(labels) > MAX_LABELS:
            raise InvalidInput(f"{LABELS} has {len(labels)} labels; at most {MAX_LABELS} can be taken")
        return [self.settings.hypothesis_template.format(self._label(raw)) for raw in labels]

    def _label(self, raw: bytes) -> str:
        refuse_longer(LABELS, raw, self.settings.max_length)
        label = decoded(LABELS, raw)
        if not label.strip():
            raise InvalidInput(f"{LABELS} has an empty label")
        return label

    def _row(self, raw: bytes, labels: Many[bytes]) -> Row:
        hypotheses = self._hypotheses(labels)
        if not raw:
            raise InvalidInput(f"{TEXT} is empty")
        used, encodings = self._pairs(raw, hypotheses)
        for encoding in encodings:
            refuse_tokens(f"{TEXT} or {LABELS}", encoding.ids, self.settings.vocab_size, self._tokenizer)
        sequences = tuple(sequence(encoding, self.settings) for encoding in encodings)
        return Row(sequences, max(max(map(self._dropped, encodings)), int(used.cut)))

    def _pairs(self, raw: bytes, hypotheses: list[str]) -> tuple[Piece, list[Any]]:
        """The widest piece of the text that is needed, and its encodings with every hypothesis."""
        for bytes_per_token in BYTES_PER_TOKEN:
            used = piece(TEXT, raw, self.settings.max_length * bytes_per_token, self._side)
            encodings = self._tokenize(used.text, hypotheses)
            if not used.cut or settled(encodings[0], self._side):
                break
        return used, encodings

    def _tokenize(self, premise: str, hypotheses: list[str]) -> list[Any]:
        try:
            return self._tokenizer.encode_batch([(premise, each) for each in hypotheses])  # type: ignore[no-any-return]
        except Exception as error:
            if "too short" not in str(error):
                raise
            room = self.settings.max_length
            raise InvalidInput(f"{LABELS} has a label that leaves no room for the text in {room} tokens") from None

    def _dropped(self, encoding: Any) -> int:
        if len(encoding) < self.settings.max_length:
            return 0
        return sum(sequence_length(part, 0) for part in encoding.overflowing)
