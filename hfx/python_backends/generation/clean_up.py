"""transformers' `clean_up_tokenization`: spaces before punctuation and short forms are left out.

Owns the rule, for whole texts and for texts that come in pieces; knows no tokens.
"""

from __future__ import annotations

from .decodings import Decoding

# In this order (transformers 4.57, PreTrainedTokenizerBase.clean_up_tokenization).
_REPLACED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip

# Each pattern is a space and at most this many characters more.
_REACH = 3

# Words behind which the loss of a space that follows could complete a pattern: " ' " itself, and " n" before "'t".
_OPEN_WORDS = ("'", "n")


def clean_up(text: str) -> str:
    """`text` without the spaces that tokenization left before punctuation."""
    for pattern, replacement in _REPLACED:
        text = text.replace(pattern, replacement)
    return text


class CleanedDecoding:
    """Another decoding's text, cleaned up; the end of it is held back until no later text can change it."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._held = ""

    def push(self, token_id: int) -> str:
        """See Decoding."""
        text = self._held + self._decoding.push(token_id)
        cut = _last_cut(text)
        self._held = text[cut:]
        return clean_up(text[:cut])

    def finish(self) -> str:
        """See Decoding."""
        return clean_up(self._held + self._decoding.finish())


def _last_cut(text: str) -> int:
    """The last place where `text`, which begins at such a place, can be cut and its parts be cleaned up apart."""
    return next((at for at in range(len(text), 0, -1) if _separates(text, at)), 0)


def _separates(text: str, at: int) -> bool:
    """Whether no pattern can lie across `at`, in any of the passes: they begin with spaces and only spaces get lost.

    That is so where no space is within reach before it, and before a space that ends a word other than _OPEN_WORDS.
    """
    space = text.rfind(" ", max(0, at - _REACH), at)
    if space < 0:
        return True
    word = text[space + 1 : at]
    return text[at : at + 1] == " " and word != "" and word not in _OPEN_WORDS
