"""Tokenizers with every kind of decoder that generators have, trained on a few lines in many scripts.

This module owns the lines, the difficult texts and the pipelines of tokenizers; it knows no model.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.zoo import tokenization

LINES = (
    "Anna went from Paris to the market in Berlin. The weather was awful!",
    "Don't you think it's a 'nice' day? They've come, we're here, I'm not.",
    "The cat 😀 sat on the 👩‍👩‍👧‍👦 mat, and 🇫🇷 won.",
    "日本語の文章です。これは二つ目の文。中文也在这里。",
    "Ça va? Où est l'élève naïf? e\u0301 a\u0308 o\u0302",
    "हिन्दी में लिखा। العربية هنا؟ Привет, мир!",
    "  two  spaces\tand a tab\nand a line\n\nand two",
)
LETTERS = "ab é\u0301\u0308😀👩\u200d👧日本の🇫🇷.,?!' nt'smve\n\t\ufffd"


def byte_level(kind: str = "gpt2") -> Any:
    return tokenization.train(kind, LINES, 400, 64)


def unigram() -> Any:
    return tokenization.train("t5", LINES, 400, 64)


def word_pieces() -> Any:
    return tokenization.train("bert-cased", LINES, 400, 64)


def byte_fallback() -> Any:
    """Return a tokenizer as Llama's and Gemma's: spaces are "▁", and characters without a piece are bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    pieces = sorted(
        {piece for line in LINES[:2] for word in line.split() for piece in ("▁" + word, word[:2], word[2:])}
    )
    ids = {"<unk>": 0, "</s>": 1, **{f"<0x{byte:02X}>": 2 + byte for byte in range(256)}}
    for piece in ["▁", "▁▁", *{c for line in LINES[:2] for c in line}, *pieces]:
        ids.setdefault(piece, len(ids))
    tokenizer = Tokenizer(models.BPE(ids, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def word_ends() -> Any:
    """Return a tokenizer as CTRL's and XLM's: the last piece of a word has a suffix."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for line in LINES[:2] for word in line.split()})
    letters = sorted({letter for word in words for letter in word})
    tokens = [form for piece in (*letters, *words) for form in (piece, f"{piece}</w>")]
    ids = {token: i for i, token in enumerate(dict.fromkeys(["<unk>", "</s>", "</w>", *tokens]))}
    tokenizer = Tokenizer(models.BPE(ids, [], unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def _words(decoder: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for line in LINES for word in line.split()})
    ids = {token: i for i, token in enumerate(["<unk>", "</s>", "x", "q", *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if decoder is not None:
        tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def no_decoder() -> Any:
    return _words(None)


def replacing() -> Any:
    """Return a tokenizer in which some tokens have no text, as in tokenizers that map letters to phonemes."""
    from tokenizers import decoders

    steps = [decoders.Replace("x", ""), decoders.Replace("q", ""), decoders.Replace("cat", "dog"), decoders.Fuse()]
    return _words(decoders.Sequence(steps))


def unknown_decoder() -> Any:
    """Return a tokenizer with the CTC decoder, which drops repeated tokens and can't decode token by token."""
    from tokenizers import decoders

    return _words(decoders.CTC("x", " ", cleanup=True))


KINDS: dict[str, Callable[[], Any]] = {
    "byte-level": byte_level,
    "unigram": unigram,
    "word-pieces": word_pieces,
    "byte-fallback": byte_fallback,
    "word-ends": word_ends,
    "no-decoder": no_decoder,
    "replacing": replacing,
    "unknown": unknown_decoder,
}


def random_text(draw: random.Random, length: int = 40) -> str:
    """Return random characters of many scripts."""
    return "".join(draw.choice(LETTERS) for _ in range(draw.randrange(length)))
