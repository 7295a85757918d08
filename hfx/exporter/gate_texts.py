"""The texts that an export is compared on, chosen by what the checkpoint's tokenizer knows.

A model of chemical reactions reads English as unknown tokens, and a comparison on these would prove little. Texts that
the tokenizer doesn't know are therefore replaced by texts made of its own vocabulary, and some texts are always made
so: sequences of its tokens are decoded to what a caller could send.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointUnsupported
from hfx.exporter.parity_texts import bundled_texts, edge_texts
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer_checks import LONG_SECONDS, tried
from hfx.python_backends.templates import FILLERS

MADE = 64  # the least number of texts that are made of the vocabulary
WHOLE = 2048  # every token of a vocabulary of up to this size is drawn, and so many tokens of a larger one
LENGTHS = (2, 4, 8, 12, 16, 24, 32, 64)  # of the sequences, in tokens
LONGEST, LONG = 512, 2  # the number of tokens of the longest sequences, and the number of these
MOST_CHARACTERS = 64  # of a token that is drawn
# Texts in which the share of unknown tokens is larger are not compared, but for every eighth; a made text has fewer.
UNKNOWN, EVERY, MADE_UNKNOWN = 0.2, 8, 0.1


@dataclass(frozen=True)
class GateTexts:
    """The texts that an export is compared on.

    The tokenizer knows the bundled texts in `ordinary` and the edge cases in `edges`, but not those in `unknown`. The
    texts in `made` are made of its vocabulary. `share` is the share of unknown tokens in all bundled texts.
    """

    ordinary: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    share: float = 0.0

    @property
    def tokenized(self) -> list[str]:
        """The texts whose tokens are compared."""
        return [*self.ordinary, *self.edges, *self.made, *self.unknown]

    @property
    def given(self) -> list[str]:
        """The texts whose answers are compared, but those that are made of the vocabulary."""
        return [*self.ordinary, *self.edges, *self.unknown[::EVERY]]

    def as_json(self) -> dict[str, Any]:
        """Return the manifest's entry for the texts."""
        known = {"known": len(self.ordinary) + len(self.edges), "unknown": len(self.unknown[::EVERY])}
        return {**known, "made": len(self.made), "unknown_share": float(f"{self.share:.4g}")}


def read_gate_texts(
    checkpoint: Checkpoint, tokenizer: Any, max_length: int, read_as: Callable[[str], Sequence[str]], has_data: bool
) -> GateTexts:
    """Return the texts for a model that reads `max_length` tokens, after a trial of `tokenizer` with each of them.

    `read_as` returns a text as the model reads it, such as behind each of its prompts. Raises CheckpointUnsafe,
    CheckpointCorrupt and, unless the user `has_data` for the comparison, CheckpointUnsupported if the tokenizer
    does not know most of the texts.
    """
    bundled, edges = bundled_texts(), edge_texts(max_length)
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(tokenizer.backend_tokenizer.to_str())
        file.flush()

        def try_all(texts: Sequence[str], drawn: Sequence[list[int]] | None = None) -> Any:
            forms = sorted({form for text in texts for form in read_as(text)})
            return tried(checkpoint, LONG_SECONDS, forms, Path(file.name), drawn=drawn)

        ids = chosen_ids(tokenizer.get_vocab(), frozenset(tokenizer.all_special_ids))
        alone = try_all([*FILLERS, *bundled, *edges], [[token] for token in ids])
        unknown = tuple(text for text in (*bundled, *edges) if unknown_share(tokenizer, [text]) > UNKNOWN)
        spelled = [text.removeprefix("##") for text, _ in alone]
        readable = [token for token, text in zip(ids, spelled, strict=True) if not unknown_share(tokenizer, [text])]
        made = _readable(tokenizer, try_all([], sequences(readable, max_length, max(MADE, len(unknown)))))
        if prompted := [text for text in made if read_as(text) != [text]]:
            try_all(prompted)
    ordinary, known = (tuple(text for text in texts if text not in unknown) for texts in (bundled, edges))
    found = GateTexts(ordinary, known, unknown, tuple(made), unknown_share(tokenizer, bundled))
    if not has_data and 2 * len(found.unknown[::EVERY]) > len(found.given) + len(found.made):
        raise CheckpointUnsupported(
            f"{checkpoint.id} can't be compared: its tokenizer knows few tokens of hfx's texts "
            f"({100 * found.share:.0f} % are unknown), and reads its own vocabulary as unknown tokens, too.",
            "Correct tokenizer.json; or give texts of the model's own kind, and their answers, by --verify-data.",
        )
    return found


def unknown_share(tokenizer: Any, texts: Sequence[str]) -> float:
    """Return the share of unknown tokens in `texts`: 0 for tokenizers without such a token, such as those of bytes.

    A text with letters or digits that is read as no tokens is unknown.
    """
    unknown, model = tokenizer.unk_token_id, tokenizer.backend_tokenizer.model
    if unknown is None and (name := getattr(model, "unk_token", None)):  # transformers may not know of it
        unknown = tokenizer.convert_tokens_to_ids(name)
    if unknown == tokenizer.eos_token_id:
        unknown = None
    rows: list[list[Any]] = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    rows = [row or [unknown] * any(map(str.isalnum, text)) for row, text in zip(rows, texts, strict=True)]
    return sum(row.count(unknown) for row in rows) / max(sum(map(len, rows)), 1)


def chosen_ids(vocabulary: Mapping[str, int], special: frozenset[int]) -> list[int]:
    """Return the ids of `vocabulary` without `special` and very long tokens, the same for each call.

    If there are more than WHOLE, they are an even choice by script, case and place in a word.
    """
    tokens = sorted((token for token in vocabulary if len(token) <= MOST_CHARACTERS), key=_order)
    ids = [vocabulary[token] for token in tokens if vocabulary[token] not in special]
    return [ids[at * len(ids) // WHOLE] for at in range(WHOLE)] if len(ids) > WHOLE else ids


def sequences(ids: Sequence[int], longest: int, count: int) -> list[list[int]]:
    """Return at least `count` sequences that have all of `ids`, in an order that is the same for each call."""
    if not ids:
        return []
    chance = random.Random(0)
    lengths = [*[min(longest, LONGEST)] * LONG, *itertools.islice(itertools.cycle(LENGTHS), count)]
    while sum(lengths) < len(ids):
        lengths += LENGTHS
    endless = (token for _ in itertools.count() for token in chance.sample(ids, len(ids)))
    return [list(itertools.islice(endless, min(length, longest))) for length in lengths]


def _order(token: str) -> tuple[str, ...]:
    """Return the key by which tokens of a kind are neighbours: script, case, and place in a word."""
    letters = token.lstrip("Ġ▁#")
    script = unicodedata.name(letters[:1] or " ", "").split(" ")[0]
    case = "upper" if letters.isupper() else "lower" if letters.islower() else "title" if letters.istitle() else ""
    return script, case, token[: len(token) - len(letters)], token


def _readable(tokenizer: Any, forms: Sequence[Sequence[str]]) -> list[str]:
    """Return one of the forms of each sequence, in turn, unless too many of its tokens are unknown."""
    made = []
    for number, both in enumerate(forms):
        short = [text for text in both if text.strip() and len(text) <= MOST_CHARACTERS * LONGEST]
        readable = [text for text in short if unknown_share(tokenizer, [text]) <= MADE_UNKNOWN]
        made += readable[number % 2 :][:1] or readable[:1]
    return list(dict.fromkeys(made))
