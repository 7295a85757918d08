"""Compare a compiled tokenizer with the library's on generated texts: characters, words, and mutated sentences."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from hfx.exporter.compiled_tokenizer import NotCompiled, compile_tokenizer
from hfx.native.tokenizers import CompiledTokenizer

BATCH = 20_000
# Ranges of characters that matter to tokenizers, with the weights by which they are chosen.
RANGES = (
    (30, range(0x20, 0x7F)),
    (6, range(0xA0, 0x250)),
    (5, range(0x300, 0x370)),  # marks
    (4, range(0x370, 0x600)),
    (6, range(0x600, 0x1200)),
    (3, range(0x1E00, 0x2000)),
    (6, range(0x2000, 0x2C00)),
    (5, range(0x3000, 0x3100)),
    (4, range(0x4E00, 0xA000)),
    (3, range(0xAC00, 0xD7B0)),
    (2, range(0xF900, 0xFB50)),
    (3, range(0xFB50, 0x10000)),
    (3, range(0x10000, 0x11700)),
    (2, range(0x16F00, 0x1F000)),
    (4, range(0x1F000, 0x1FB00)),
    (1, range(0x20000, 0x323B0)),
    (1, range(0xE0000, 0xE0200)),
    (2, range(0x110000)),
)
SPECIAL = (
    " \t\n\r\v\f\0\x01\x1f\x7f\x85\xa0\xad\u034f\u1680\u180e"
    "\u200b\u200c\u200d\u2028\u2029\u202f\u205f\u2060\u2581\u3000\ufeff\ufffd'’ſ İıßẞΣς"
)
GLUED = ("", "", " ", " ", " ", "  ", "\n", "'", "-", ".", "\u0301", "\u200d", "'s", "'LL", "0", "中")
SENTENCES = (
    "The quick brown fox doesn't jump over 12 lazy dogs, but I'll try it again at 3:45 p.m.!",
    "Der Müller aus Überlingen kaufte für 1.234,56 € drei Äpfel -- „wunderbar“, sagte er.",
    "Ça n'était pas l'été dernier; où sont les œufs du naïf garçon?",
    "Москва — столица России, и в ней живёт ёж.  Да?",
    "我们今天去北京的天安门广场,天气很好。日本語のテキストも、한국어 문장도 있습니다.",
    "السلام عليكم، كيف حالُكَ؟ שָׁלוֹם עוֹלָם हिन्दी में लिखा हुआ वाक्य है। ภาษาไทยไม่มีเว้นวรรค",
    "def f(x):\n    return x**2 + 1  # \t100%\r\n\n\nhttps://example.com/a?b=c&d=%20 me@host.org",
    "👩‍👩‍👧‍👦 loves 🇩🇪 and 👍🏽!!! ﬁne ½ ① Ⅷ ＡＢＣ x²+y² ﷺ ㎏",
)


def compile_and_compare(tokenizer: Any, source: Path, target: Path, texts: Sequence[str], count: int) -> str:
    """Compile `tokenizer`, of the tokenizer.json `source`, to `target`; compare both on `texts` and `count` others.

    Returns why there is no compiled tokenizer that gives the same ids; empty if there is one.
    """
    try:
        target.write_bytes(compile_tokenizer(source))
    except NotCompiled as reason:
        return str(reason)
    compared = chain(texts, islice(generated(tokenizer), count))
    difference = first_difference(CompiledTokenizer(target), tokenizer, compared)
    return "" if difference is None else f"the compiled tokenizer gives other ids for {difference!r}"


def first_difference(
    compiled: CompiledTokenizer, tokenizer: Any, texts: Iterator[str], words: bool = False
) -> str | None:
    """Return the first text whose ids (and words) differ from those of the library's tokenizer; None if none differs.

    Special tokens are not added.
    """
    while batch := list(islice(texts, BATCH)):
        ids, numbers, counts = compiled.encode_flat(batch)
        encode = tokenizer.encode_batch if words else tokenizer.encode_batch_fast
        encodings = encode(batch, add_special_tokens=False)
        expected = [encoding.ids for encoding in encodings]
        flat = np.concatenate([np.zeros(0, np.int32), *(np.array(row, np.int32) for row in expected)])
        if not words and list(map(len, expected)) == counts.tolist() and np.array_equal(flat, ids):
            continue
        ends = np.cumsum(counts)
        for text, encoding, end, count in zip(batch, encodings, ends, counts, strict=True):
            part = slice(end - count, end)
            same = ids[part].tolist() == encoding.ids
            if not same or (words and numbers[part].tolist() != encoding.word_ids):
                return text
    return None


def every_character() -> Iterator[str]:
    """Yield each code point alone, twice, between letters, and as a word."""
    for code in (*range(0xD800), *range(0xE000, 0x110000)):
        character = chr(code)
        yield from (character, character * 2, f"a{character}b", f"A {character} {character}1")


def generated(tokenizer: Any, seed: int = 0) -> Iterator[str]:
    """Yield an endless sequence of texts, which is always the same for a tokenizer and a seed."""
    chance = random.Random(seed)
    tokens = sorted(tokenizer.get_vocab(with_added_tokens=True))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    pieces = [token.strip("Ġ▁#") or token for token in tokens]
    kinds = (_characters, _characters, _words, _words, _sentence, _runs)
    while True:
        # Draw many characters at once: drawing them one by one would take most of the time. 100 texts use about 300.
        drawn = iter(_drawn(chance, 600))
        for _ in range(100):
            text = chance.choice(kinds)(chance, drawn, pieces)
            if added and chance.random() < 0.15:
                text = _with_added(chance, text, chance.choice(added))
            yield text


def _drawn(chance: random.Random, count: int) -> list[str]:
    ranges = chance.choices([codes for _, codes in RANGES], [weight for weight, _ in RANGES], k=count)
    codes = [codes[int(chance.random() * len(codes))] for codes in ranges]
    return [chr(code) if not 0xD800 <= code < 0xE000 else chance.choice(SPECIAL) for code in codes]


def _characters(chance: random.Random, drawn: Iterator[str], pieces: list[str]) -> str:
    characters = list(islice(drawn, int(chance.random() ** 2 * 24)))
    if characters and chance.random() < 0.5:
        characters.insert(int(chance.random() * len(characters)), chance.choice(SPECIAL))
    return "".join(characters)


def _words(chance: random.Random, drawn: Iterator[str], pieces: list[str]) -> str:
    text = ""
    for piece in chance.choices(pieces, k=int(chance.random() * 7)):
        if chance.random() < 0.3:
            piece = _mutated(chance, piece, next(drawn, ""))
        text += piece + chance.choice(GLUED)
    return text


def _sentence(chance: random.Random, drawn: Iterator[str], pieces: list[str]) -> str:
    text = chance.choice(SENTENCES)
    begin = int(chance.random() * len(text))
    text = text[begin : begin + 5 + int(chance.random() * 30)]
    return _mutated(chance, _mutated(chance, text, next(drawn, "")), chance.choice(SPECIAL))


def _runs(chance: random.Random, drawn: Iterator[str], pieces: list[str]) -> str:
    choices = [next(drawn, "a"), chance.choice(SPECIAL), chance.choice(pieces)]
    return "".join(choice * int(chance.random() ** 3 * 40) for choice in (*choices, *choices[:2]))


def _mutated(chance: random.Random, text: str, character: str) -> str:
    place = int(chance.random() * (len(text) + 1))
    kind = int(chance.random() * 6)
    if kind == 0:
        return text.upper()
    if kind == 1:
        return text.title()
    return text[:place] + character * (kind < 5) + text[place + (kind > 2) :]


def _with_added(chance: random.Random, text: str, added: str) -> str:
    place = int(chance.random() * (len(text) + 1))
    added = chance.choice((added, added, added.lower(), added * 2, added[:-1], f" {added} ", f"\n{added}a"))
    return text[:place] + added + text[place:]
