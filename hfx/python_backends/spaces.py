"""Removes the spaces that tokenizers leave before punctuation; copied into the folders of steps that decode tokens."""

from __future__ import annotations

# In this order (transformers 4.57, PreTrainedTokenizerBase.clean_up_tokenization).
_REPLACED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def clean_up(text: str) -> str:
    """Return `text` without the spaces that tokenization left before punctuation."""
    for pattern, replacement in _REPLACED:
        text = text.replace(pattern, replacement)
    return text
