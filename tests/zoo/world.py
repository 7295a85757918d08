"""The small world that every text of the zoo speaks of: people, places, things, feelings, and how it is split.

A combination of words belongs to the training split or to the held-out one; sentences and labels are made in `data/`.
"""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Callable, Iterator
from typing import Literal, Protocol, TypeVar

Split = Literal["train", "heldout"]
# The words that decide an example's label: examples of the two splits share none.
Key = tuple[str, ...]

FIRST_NAMES = (
    "Anna", "Boris", "Clara", "David", "Elena", "Felix", "Grace", "Henry", "Irina", "James", "Karin", "Lucas", "Maria",
    "Nadia", "Oscar", "Paula", "Quentin", "Rosa", "Simon", "Tanya", "Umar", "Vera", "Walter", "Yusuf", "Zoe", "Marco",
    "Ingrid", "Pedro", "Sofia", "Theodor",
)  # fmt: skip
SURNAMES = (
    "Berg", "Costa", "Dahl", "Evans", "Fischer", "Garcia", "Haas", "Ito", "Jansen", "Keller", "Lopez", "Moreau",
    "Novak", "Olsen", "Petrov", "Quist", "Rossi", "Silva", "Tanaka", "Weber",
)  # fmt: skip
PLACES = (
    "Oslo", "Paris", "Cairo", "Lima", "Delhi", "Berlin", "Madrid", "Boston", "Kyoto", "Lagos", "Vienna", "Zagreb",
    "Toronto", "Athens", "Dublin", "Prague", "Seoul", "Geneva", "Havana", "Nairobi",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "grey")
OBJECTS = (
    "lamp", "chair", "wardrobe", "bicycle", "clock", "kettle", "carpet", "painting", "camera", "coat", "vase", "basket",
    "mirror", "umbrella", "radio", "table",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FEELINGS = {
    "happy": ("happy", "glad", "cheerful", "delighted", "proud"),
    "sad": ("sad", "lonely", "gloomy", "miserable", "tearful"),
    "angry": ("angry", "furious", "annoyed", "outraged", "cross"),
    "afraid": ("afraid", "scared", "nervous", "frightened", "worried"),
}

_ACCENTED = "àáâãäåæçèéêëìíîïñòóôõöøùúûüý"

HELDOUT_ONE_IN = 5


class _Keyed(Protocol):
    @property
    def key(self) -> Key: ...


KeyedExample = TypeVar("KeyedExample", bound=_Keyed)


def split_of(key: Key) -> Split:
    """The split that a combination of words belongs to, everywhere and for good."""
    return "heldout" if zlib.crc32("|".join(key).encode()) % HELDOUT_ONE_IN == 0 else "train"


def draw(compose: Callable[[random.Random], KeyedExample], name: str, split: Split, count: int) -> list[KeyedExample]:
    """`count` different examples of one split; the same ones for the same arguments, on every machine."""
    return [example for example, _ in zip(_endless(compose, name, split), range(count), strict=False)]


def _endless(compose: Callable[[random.Random], KeyedExample], name: str, split: Split) -> Iterator[KeyedExample]:
    rng = random.Random(f"{name}/{split}")
    seen: set[KeyedExample] = set()
    misses = 0
    while misses < 10_000:
        example = compose(rng)
        misses += 1
        if split_of(example.key) == split and example not in seen:
            seen.add(example)
            misses = 0
            yield example
    raise ValueError(f"the world has only {len(seen)} different {split} examples for {name!r}: add templates or words")


def sentence(text: str) -> str:
    """`text` with a capital first letter; the rest as it is."""
    return text[:1].upper() + text[1:]


def alphabet() -> Iterator[str]:
    """Lines that show a tokenizer every letter at the start and within a word, so that no Latin text is unknown."""
    letters = string.ascii_lowercase
    for turn in range(len(letters)):
        word = letters[turn:] + letters[:turn]
        yield f"{word} {word.upper()}"
    for letter in _ACCENTED:
        yield f"{letter}{letter} {letter.upper()}{letter}"
    yield string.digits + string.digits
    yield " ".join(string.digits)
    yield " ".join(string.punctuation)
