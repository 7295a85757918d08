"""The texts on which every export is compared with its checkpoint: ordinary texts and edge cases.

The texts are fixed, so that two exports of a checkpoint are judged alike.
"""

from __future__ import annotations

from pathlib import Path

COMMENT = "#"
# A word that is one token in nearly every vocabulary, and the number of special tokens around a single text.
COMMON_WORD, SPECIAL_TOKENS = "the", 2

BLANKS = ("", " ", "   ", "\t", "\n", "\r\n\r\n", "\u00a0", "\u3000", "\u2003\u2009", " \t\n\u00a0\u3000")
SHORT = ("a", "I", "7", "?", "é", "界", "the", "the cat")
EDGES = (
    # emoji
    "😀",
    "👩‍👩‍👧‍👦",  # joined by U+200D
    "🏳️‍🌈 👩🏽‍🚀 🧑🏿‍🤝‍🧑🏻",
    "🇯🇵🇧🇷🇰🇪",
    "1️⃣ 2️⃣ 3️⃣ go 🚀🚀🚀",
    "I love it 😍 but the price 😱",
    # from right to left
    "هذه جملة قصيرة عن الطقس.",
    "זהו משפט קצר על מזג האוויר.",
    "The word שלום means peace, and سلام does too (1234).",
    "\u202eabc\u202c \u2067def\u2069",  # overrides and isolates
    # combining characters
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m",  # decomposed
    "Z\u0351\u036b\u0343a\u0328\u0301\u0302l\u0334\u0321g\u0338o\u0340",
    "\u0301\u0302\u0303",  # marks on nothing
    "각각 \u1100\u1161\u11a8",  # a Hangul syllable, and its parts
    "ﬁne oﬃce ² ㎏ Ⅷ",  # compatibility forms
    # control characters
    "\x00",
    "a\x00b",
    "\x01\x02\x03\x1f\x7f",
    "bell\x07 escape\x1b[31mred\x1b[0m",
    "zero\u200bwidth\u200cjoin\u200der\u2060word\ufeff",
    "\u200b",
    "\ufeffbyte order mark",
    "soft\u00adhyphen next\u0085line line\u2028separator",
    "\ufffd\ufffe\uffff",
    "\ue000 private use",
    # spellings of special tokens
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[PAD]",
    "[UNK]",
    "<s>",
    "</s>",
    "<pad>",
    "<unk>",
    "<mask>",
    "<|endoftext|>",
    "▁",
    "##ing",
    "Ġthe",
    "first </s> second </s></s> third",
    "[CLS] a text that begins like a row [SEP] and goes on [SEP]",
    "The capital is [MASK], I think; <mask> will do too.",
    # punctuation alone
    "...",
    "?!?!?!",
    "-" * 80,
    "\"'`´«»“”",
    "()[]{}<>",
    "$€£¥₹",
    "*** --- ***",
    "、。！？",
    # many lines
    "one\ntwo\nthree",
    "\n\n\nfar down\n\n\n",
    "a\r\nb\rc\n",
    "- first\n- second\n\t- third\n\n1. fourth",
    "x\n" * 50,
    # beyond 16 bits
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒸𝓊𝓇𝓈𝒾𝓋𝑒 𝟙𝟚𝟛",
    "𐍈𐌰𐌹𐍂𐌸𐍉",
    "𠜎𠜱𠝹",
    "\U0001d11e\U0001f0a1",
    "\U000e0041\U000e0042",
    "\U0010fffd",
    # endless words
    "x" * 99,
    "x" * 101,
    "antidis" * 60,
    "ab" * 2000,
    "https://example.org/" + "path/" * 80,
)


def bundled_texts() -> list[str]:
    """Return over two hundred ordinary texts of many kinds, lengths, languages and scripts, in a fixed order."""
    lines = Path(__file__).with_name("parity_texts.txt").read_text(encoding="utf-8").split("\n")
    first = next(i for i, line in enumerate(lines) if not line.startswith(COMMENT))
    return [line for line in lines[first:] if line]


def edge_texts(max_length: int) -> list[str]:
    """Return edge cases for a tokenizer and a model of `max_length` tokens, in a fixed order.

    They are blanks, single characters and tokens, texts of exactly `max_length` tokens, of one token less and more, and
    of several times as many, emoji, scripts from right to left, combining and control characters, the spellings of
    special tokens, endless words, punctuation alone, many lines, and characters beyond 16 bits. All are valid UTF-8.
    """
    full = max(max_length - SPECIAL_TOKENS, 1)
    lengths = [" ".join([COMMON_WORD] * words) for words in (max(full - 1, 1), full, full + 1, 3 * full)]
    floods = [
        " " * (4 * max_length) + "after blanks",
        "before blanks" + "\n" * (4 * max_length),
        "界" * (2 * max_length),
    ]
    return [*BLANKS, *SHORT, *lengths, *floods, *EDGES]
