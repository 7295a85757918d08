"""Open a tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class BadToken(ValueError):
    """A text of some characters can take all memory because of an added token."""


def open_tokenizer(file: Path | str) -> Any:
    """Return the tokenizers.Tokenizer in `file`. Raises BadToken, and ValueError for a file that can't be read."""
    from tokenizers import Tokenizer  # `hfx verify --url` runs without tokenizers

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except BaseException as error:  # the library's own exceptions, and its panics
        raise ValueError(f"{file} can't be read: {error}") from None
    for token, form in added_forms(tokenizer):
        if not form:  # of which tokenizers 0.23.3 finds matches without end
            raise BadToken(f"{file} has the added token {token.content!r}, of which its normalizer leaves nothing")
    return tokenizer


def added_forms(tokenizer: Any) -> list[tuple[Any, str]]:
    """Return the added tokens, each with the text that it matches: its content, normalized if the token is."""
    normalizer = tokenizer.normalizer
    return [
        (token, normalizer.normalize_str(token.content) if normalizer and token.normalized else token.content)
        for token in tokenizer.get_added_tokens_decoder().values()
    ]
