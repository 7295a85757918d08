"""The texts that are sent: of an exact number of tokens, or of the lengths that real traffic has.

Real texts come from data files that may be absent; then the small world of the tests writes them. Knows no server.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

WORDS = ("the", "garden", "of", "a", "friend", "was", "lovely", "and", "the", "old", "house", "is", "quiet")
PARAGRAPH_EVERY = 8  # one text of this many is a paragraph, the others are sentences
SHORTEST_PARAGRAPH = 200  # characters: below it are headings and single clauses
SEED = 0


def of_length(tokens: int, count: Callable[[str], int]) -> str:
    """A text of exactly `tokens` tokens by `count`, special ones included."""
    text, at = "", 0
    while count(text) < tokens:
        grown = f"{text} {WORDS[at % len(WORDS)]}".strip()
        # A word of several tokens may overshoot; then single letters fill up.
        text = grown if count(grown) <= tokens else f"{text} a".strip()
        at += 1
    if count(text) != tokens:
        raise ValueError(f"no text of {tokens} tokens")
    return text


@dataclass(frozen=True)
class Mix:
    """Texts of mixed lengths in the order they are sent, all texts of the source, and what they are."""

    texts: tuple[str, ...]
    source: tuple[str, ...]
    description: str


def data_folder() -> Path:
    """`$HFX_BENCH_DATA`, or `shared/data` beside the checkout."""
    return Path(os.environ.get("HFX_BENCH_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def mix(count: int) -> Mix:
    """`count` texts: sentences of film reviews among paragraphs of bills, or the tests' own texts without that data."""
    folder = data_folder()
    reviews, bills = folder / "sst2" / "dev.tsv", sorted((folder / "billsum").glob("*.csv"))
    if reviews.is_file() and bills:
        sentences = [line.split("\t")[0] for line in reviews.read_text(encoding="utf-8").splitlines()[1:]]
        documents = [row["text"] for file in bills for row in _rows(file)]
        paragraphs = [paragraph for document in documents for paragraph in _paragraphs(document)]
        what = f"SST-2 sentences, 1 in {PARAGRAPH_EVERY} a paragraph of a US bill (BillSum)"
        return Mix(_mixed(sentences, paragraphs, count), (*sentences, *documents), what)
    sentences, paragraphs = _world()
    what = f"sentences of the tests' world, 1 in {PARAGRAPH_EVERY} several of them: no data in {folder.name}/"
    return Mix(_mixed(sentences, paragraphs, count), (*sentences, *paragraphs), what)


def _mixed(sentences: Sequence[str], paragraphs: Sequence[str], count: int) -> tuple[str, ...]:
    chance = random.Random(SEED)
    long = count // PARAGRAPH_EVERY
    texts = [*_some(paragraphs, long, chance), *_some(sentences, count - long, chance)]
    chance.shuffle(texts)
    return tuple(texts)


def _some(texts: Sequence[str], count: int, chance: random.Random) -> list[str]:
    return chance.sample(texts, count) if count <= len(texts) else chance.choices(texts, k=count)


def _paragraphs(document: str) -> Iterator[str]:
    for part in document.split("\n"):
        paragraph = " ".join(part.split())
        if len(paragraph) >= SHORTEST_PARAGRAPH:
            yield paragraph


def _rows(file: Path) -> Iterator[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        yield from csv.DictReader(lines)


def _world() -> tuple[list[str], list[str]]:
    from tests import zoo

    sentences = [example.text for example in zoo.heldout("sentiment", 1000)]
    return sentences, [" ".join(sentences[at : at + 8]) for at in range(0, len(sentences), 8)]
