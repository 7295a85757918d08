"""The spaces that tokenizers leave before punctuation. A step that spells tokens has it in its folder."""

from __future__ import annotations

# In this order (transformers 4.57, PreTrainedTokenizerBase.clean_up_tokenization).
_REPLACED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def clean_up(text: str) -> str:
    """`text` without the spaces that tokenization left before punctuation."""
    for pattern, replacement in _REPLACED:
        text = text.replace(pattern, replacement)
    return text
