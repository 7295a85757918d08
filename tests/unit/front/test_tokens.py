"""The answer of /tokenize for a text."""

from __future__ import annotations

import json

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from hfx.front.dialects.tei_tokens import DUMPED_TOKENS, tokens_json


def tokenizer() -> Tokenizer:
    words = Tokenizer(WordLevel({"<s>": 0, "a": 1, "b": 2, "é": 3}, unk_token="a"))
    words.pre_tokenizer = WhitespaceSplit()
    words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return words


def test_the_tokens_of_a_text_are_written_in_pieces_of_any_number() -> None:
    for count in (0, 1, DUMPED_TOKENS - 1, DUMPED_TOKENS, 3 * DUMPED_TOKENS + 1):
        text = "é b " * count
        [encoding] = tokenizer().encode_batch([text])
        first, *tokens = json.loads(tokens_json(text, encoding))
        assert first == {"id": 0, "text": "<s>", "special": True, "start": None, "stop": None}
        assert [token["id"] for token in tokens] == [3, 2] * count
        assert all(token["text"] == text[token["start"] : token["stop"]] for token in tokens)
