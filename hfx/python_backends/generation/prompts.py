"""Encode texts to the engine's requests: token ids, within the limits of the model.

The ids equal those of the checkpoint's own tokenizer with truncation: if a text is too long, a text for an encoder
loses its end, and a text that a decoder continues loses its beginning. Special tokens stay. Lost tokens are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Union

from ..engine.request import Request
from ..errors import DoesNotFit, InvalidInput, InvalidRequest, ModelDamaged, unusable
from ..inputs import BYTES_PER_TOKEN, LONGEST_TEXT, MARGIN, decoded, piece
from .configuration import Configuration, GenerationConfig

FIELD = "text_input"
Text = Union[str, bytes]

# In a text of up to this many bytes, all tokens are counted. For a longer text, the number of truncated tokens is a
# lower bound.
COUNTED = 2**16


class PromptEncoder:
    """Encodes texts with `tokenizer`, a tokenizers.Tokenizer, whose truncation it turns off. Raises ModelDamaged.

    Texts with ids from `vocab_size` on are refused, because the model has no embeddings for these.
    """

    def __init__(self, tokenizer: Any, configuration: Configuration, vocab_size: int = sys.maxsize) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._configuration = configuration
        self._vocab_size = vocab_size
        self._added = tokenizer.num_special_tokens_to_add(is_pair=False)
        prefix = len(tokenizer.encode(configuration.prefix, add_special_tokens=False))
        self._capacity = self._longest() - self._added
        self.room = self._capacity - prefix
        if self.room < 1:
            raise ModelDamaged(
                f"the model holds {self._longest()} tokens; prefix and special tokens take {self._added + prefix}"
            )

    def encode(self, text: Text, config: GenerationConfig) -> Request:
        """Return the request for `text`. Raises InvalidRequest, and DoesNotFit if it is too long and may not be cut.

        If the prompt is token ids, which are never cut, `text` must be empty.
        """
        if config.prompt_token_ids:
            return self._of_ids(text, config)
        raw = _bytes(self._configuration.prefix) + _bytes(text)
        return self._source(raw, config) if self._configuration.has_encoder else self._beginning(raw, config)

    def document(self, text: Text) -> str:
        """Return the whole of a text, decoded from UTF-8. Raises InvalidRequest, DoesNotFit."""
        raw = _bytes(text)
        try:
            return decoded(FIELD, raw)
        except InvalidInput as refusal:
            raise _not_utf8(raw, refusal) from None

    # The methods with which documents.py measures the parts of a document. Like them, `room` counts neither special
    # tokens nor the prefix.

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, without special tokens and the prefix."""
        return [len(each) for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def ends(self, text: str) -> list[int]:
        """Return the end of each token of `text`, in characters."""
        return [end for _, end in self._encoding(text).offsets]

    def fits(self, text: str) -> bool:
        """Whether a text, with the prefix, fits the model."""
        return bool(self.lengths([self._configuration.prefix + text])[0] <= self._capacity)

    def _encoding(self, text: str) -> Any:
        """Encode a text while other threads run. `encode` would hold the interpreter's lock (60 ms for 200 KB)."""
        return self._tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def _longest(self) -> int:
        configuration = self._configuration
        return configuration.max_length - 1 if configuration.max_source is None else configuration.max_source

    def _specials(self, config: GenerationConfig) -> int:
        """The number of special tokens that a text gets."""
        return self._added if config.add_special_tokens else 0

    def _source(self, raw: bytes, config: GenerationConfig) -> Request:
        encoding, dropped = self._fitted(raw, self._longest() - self._specials(config), "right")
        if dropped and config.long == "error":
            longest = self._longest()
            fix = f"Shorten it, or set long to truncate to use its first {longest} tokens, or to chunk"
            raise DoesNotFit("tokens for its text", longest + dropped, longest, fix)
        return Request(self._ids(encoding, config), config, config.deadline, truncated_tokens=dropped)

    def _beginning(self, raw: bytes, config: GenerationConfig) -> Request:
        """Return the request for a text to continue, which shares its positions with the new tokens."""
        length, specials = self._configuration.max_length, self._specials(config)
        is_cut, by_default = config.long == "truncate", self._configuration.default_max_length
        reserved = config.max_tokens if is_cut or config.asks_for_tokens else max(config.min_tokens, 1)
        if by_default is not None and not config.asks_for_tokens:  # the answer gets the rest of this length
            length = min(length, by_default)
            reserved = max(config.min_tokens, length // 2 if is_cut else 1)
        room = length - reserved - specials
        encoding, dropped = self._fitted(raw, max(room, 1), "left")
        if len(encoding) + dropped > room and (room < 1 or not is_cut):
            fix = f"The text may have {length - reserved} beside {reserved} new ones"
            fix += "; with max_tokens set, more fit" if length < self._configuration.max_length else ""
            fix += "" if is_cut else "; with long set to truncate, the last of a longer text are used"
            needed = reserved + specials + len(encoding) + dropped
            raise DoesNotFit("tokens for its text and the new ones", needed, length, fix)
        ids = self._ids(encoding, config)
        config = replace(config, max_tokens=min(config.max_tokens, length - len(ids)))
        return Request(ids, config, config.deadline, truncated_tokens=dropped)

    def _of_ids(self, text: Text, config: GenerationConfig) -> Request:
        ids = config.prompt_token_ids
        if text:
            raise unusable(FIELD, text, "prompt_token_ids are the prompt")
        if max(ids) >= self._vocab_size:
            raise InvalidRequest("prompt_token_ids", max(ids), f"made of ids from 0 to {self._vocab_size - 1}")
        if not (self._configuration.has_encoder or config.asks_for_tokens):
            length = self._configuration.default_max_length or self._configuration.max_length
            config = replace(config, max_tokens=max(min(config.max_tokens, length - len(ids)), 1))
        return Request(ids, config, config.deadline)

    def _fitted(self, raw: bytes, room: int, side: str) -> tuple[Any, int]:
        """Return at most `room` tokens of a text, and how many tokens were cut off.

        `side` is the side that is cut: "right" keeps the first tokens, "left" the last.
        """
        for bytes_per_token in BYTES_PER_TOKEN:
            try:
                used = piece(FIELD, raw, max(room, COUNTED // BYTES_PER_TOKEN[0]) * bytes_per_token, side)
            except InvalidInput as refusal:
                raise _not_utf8(raw, refusal) from None
            encoding = self._encoding(used.text)
            if not used.cut or _is_settled(encoding, room, side):
                break
        dropped = max(len(encoding) - room, int(used.cut))
        encoding.truncate(room, direction=side)
        return encoding, dropped

    def _ids(self, encoding: Any, config: GenerationConfig) -> tuple[int, ...]:
        ids = self._tokenizer.post_process(encoding, add_special_tokens=config.add_special_tokens).ids
        languages = self._configuration.languages
        if config.source_id is not None and languages and languages.source_index is not None:
            ids[languages.source_index] = config.source_id  # replaces the token of the default language
        beginning = self._configuration.bos_token_id
        if not ids and beginning is not None and not self._configuration.has_encoder:
            ids = [beginning]  # like transformers' generate, for an empty text
        if not ids:
            raise InvalidRequest(FIELD, "", "a text of at least one token")
        if max(ids) >= self._vocab_size:
            token = self._tokenizer.id_to_token(max(ids))
            message = f"{FIELD} has the token {token!r}, for which the model has no embedding; remove it from the text"
            raise InvalidRequest(FIELD, token, "", message)
        return tuple(ids)


def _is_settled(encoding: Any, room: int, side: str) -> bool:
    """Whether the `room` remaining tokens of a text that was cut are the same as those of the whole text.

    They are the same if the cut lies in another word than the last remaining token, or MARGIN tokens away from it.
    """
    dropped = len(encoding) - room
    if dropped <= 0:
        return False
    words = encoding.word_ids if side == "right" else encoding.word_ids[::-1]
    return dropped >= MARGIN or (None not in (words[room - 1], words[-1]) and words[room - 1] != words[-1])


def refuse_huge(text: Text) -> None:
    """Refuse a text of more than LONGEST_TEXT bytes (or characters, before they are encoded). Raises DoesNotFit."""
    if len(text) > LONGEST_TEXT:
        raise DoesNotFit("bytes of text", len(text), LONGEST_TEXT, "Divide the text")


def _bytes(text: Text) -> bytes:
    """Return a text as UTF-8, which can be cut without reading the rest. Raises InvalidRequest, DoesNotFit."""
    if not isinstance(text, (str, bytes)):
        raise InvalidRequest(FIELD, text, "a text")
    refuse_huge(text)
    try:
        return text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            FIELD, text[error.start : error.end], "Unicode text, without halves of surrogate pairs"
        ) from None


def _not_utf8(raw: bytes, refusal: InvalidInput) -> InvalidRequest:
    return InvalidRequest(FIELD, raw[:32], f"text in UTF-8 ({refusal})")
