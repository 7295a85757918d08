"""A generator that recites: its next token depends on its position in a given text alone.

The characters of the text fall into several tokens each, so transformers' own decode tells in advance what a real
server must stream. Sampled at a high temperature, the model gives bytes that are not valid text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.zoo import tokenization

# ZWJ families, skin tones, flags; Chinese, Japanese, Korean; marks that combine; right to left; long and short bytes.
VERSE = (
    "👩‍👩‍👧‍👦 and 👨🏽‍🚀 fly 🇫🇷🇩🇪🏴󠁧󠁢󠁳󠁣󠁴󠁿 over 日本語の文章。中文也在这里，한국어 e\u0301a\u0308o\u0302\u0323 Ça naïf "
    "שָׁלוֹם עולם العَرَبِيَّة هنا हिन्दी में \u202bمرحبا\u202c Привет 𝔘𝔫𝔦 ﷽ 1️⃣ z\u0335\u0321\u0327a\u0334l\u0336g\u0337o\u0338. "
)
POSITIONS = 8192
WIDTH = 64
VOCABULARY = 320
# A recital that takes many seconds: the work for this setting grows with the text, and it forbids nothing here before
# the verse has come round some times.
ENDLESS: dict[str, Any] = {"max_tokens": 8000, "no_repeat_ngram_size": 300}
LOUDNESS = 6.0  # of the place beside the token that stands there


def tokenizer() -> Any:
    """Return byte-level BPE whose few merges cross the borders of characters."""
    return tokenization.train("gpt2", [VERSE.replace(" ", ""), VERSE], VOCABULARY, POSITIONS)


def save(folder: Path) -> Path:
    """Save the checkpoint in `folder`, as save_pretrained writes it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    made = tokenizer()
    ends = {"eos_token_id": made.eos_token_id, "bos_token_id": made.bos_token_id, "pad_token_id": made.eos_token_id}
    config = GPT2Config(
        vocab_size=len(made), n_positions=POSITIONS, n_embd=WIDTH, n_layer=1, n_head=2, n_inner=WIDTH, **ends
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        model = GPT2LMHeadModel(config).eval()
        tokens = model.transformer.wte.weight.normal_()
        following = torch.tensor(recited(made)[1:])
        model.transformer.wpe.weight.copy_(LOUDNESS * tokens[following])
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


def recited(made: Any) -> list[int]:
    """Return the ids that the model recites, by position."""
    verse = made(VERSE)["input_ids"]
    return (verse * (POSITIONS // len(verse) + 1))[: POSITIONS + 1]


class Recital:
    """The model's texts, computed without the model."""

    def __init__(self) -> None:
        self._tokenizer = tokenizer()
        self._ids = recited(self._tokenizer)

    def text(self, prompt: str, tokens: int) -> str:
        """Return the text of `tokens` tokens after `prompt`; a character that is cut at either end is U+FFFD."""
        begin = len(self._tokenizer(prompt)["input_ids"])
        return str(self._tokenizer.decode(self._ids[begin : begin + tokens]))
