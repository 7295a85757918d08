"""From token ids to text: the whole of it at once, or as the tokens come.

Both are what transformers' `tokenizer.decode(ids, skip_special_tokens=True)` gives, spaces cleaned up where the
tokenizer is configured so. Owns the choice of the decoding; knows no stop strings and no engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .clean_up import CleanedDecoding, clean_up
from .decoder_kinds import decoder_kind, decoder_steps, is_byte_token, token_bytes
from .decodings import ByteDecoding, Decoding, WholeDecoding, WindowDecoding


class Detokenizer:
    """Makes texts of ids with a tokenizers.Tokenizer; one for all sequences and threads.

    `cleans_up_spaces` is the tokenizer's `clean_up_tokenization_spaces`. `special_ids` have no text, and neither have
    tokens that the tokenizer itself calls special.
    """

    def __init__(self, tokenizer: Any, cleans_up_spaces: bool = False, special_ids: Sequence[int] = ()) -> None:
        added = tokenizer.get_added_tokens_decoder()
        decoder = json.loads(tokenizer.to_str())["decoder"]
        self._tokenizer = tokenizer
        self._cleans_up = cleans_up_spaces
        self._special = frozenset(special_ids) | {token_id for token_id, token in added.items() if token.special}
        self._kind = decoder_kind(decoder)
        self._has_byte_tokens = any(step["type"] == "ByteFallback" for step in decoder_steps(decoder))
        self._bytes: dict[int, bytes] = {}

    def open(self) -> Decoding:
        """The decoding of a sequence that begins."""
        decoding = self._decoding()
        return CleanedDecoding(decoding) if self._cleans_up else decoding

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole sequence."""
        text = self._text(ids)
        return clean_up(text) if self._cleans_up else text

    def _decoding(self) -> Decoding:
        if self._kind == "bytes":
            return ByteDecoding(self._bytes_of)
        if self._kind == "windows":
            return WindowDecoding(self._text, self._is_open)
        return WholeDecoding(self._text)

    def _text(self, ids: Sequence[int]) -> str:
        kept = [token_id for token_id in ids if token_id not in self._special]
        return self._tokenizer.decode(kept, skip_special_tokens=True)  # type: ignore[no-any-return]

    def _bytes_of(self, token_id: int) -> bytes:
        found = self._bytes.get(token_id)
        if found is None:
            token = None if token_id in self._special else self._tokenizer.id_to_token(token_id)
            found = self._bytes[token_id] = b"" if token is None else token_bytes(token)
        return found

    def _is_open(self, token_id: int) -> bool:
        """Whether a token's text depends on what follows; one without a text belongs to the next token."""
        token = None if token_id in self._special else self._tokenizer.id_to_token(token_id)
        return token is None or (self._has_byte_tokens and is_byte_token(token))
