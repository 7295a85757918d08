"""Topics: texts that touch none, one or several of six topics.

A topic hangs on a fragment's noun, or is named outright; the key is the nouns of a text, so held-out texts combine
nouns that training never saw together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.zoo import world

LABELS = ("food", "money", "music", "sport", "travel", "weather")

_NOUNS = {
    "food": ("bread", "soup", "cheese", "rice", "cake", "salad", "pasta", "apples", "fish", "breakfast", "dinner"),
    "money": ("loan", "salary", "mortgage", "tax", "invoice", "budget", "pension", "debt", "shares", "savings", "rent"),
    "music": ("guitar", "violin", "piano", "choir", "song", "concert", "orchestra", "drums", "melody", "opera", "band"),
    "sport": ("football", "tennis", "hockey", "match", "race", "goal", "team", "coach", "swimming", "league", "cup"),
    "travel": (
        "flight", "train", "passport", "luggage", "hotel", "airport", "ferry", "tour", "ticket", "journey", "map",
    ),
    "weather": ("rain", "snow", "storm", "wind", "sunshine", "fog", "frost", "heat", "thunder", "clouds", "hail"),
}  # fmt: skip
_FORMS = {
    "food": (
        "{name} cooked the {noun}", "the {noun} tasted of garlic", "we ate {noun} at noon",
        "{name} ordered more {noun}",
    ),
    "money": (
        "the bank asked about the {noun}", "{name} paid for the {noun}", "the {noun} costs too much",
        "{name} counted the {noun}",
    ),
    "music": (
        "{name} practised for the {noun}", "the {noun} sounded soft", "we listened to the {noun}",
        "{name} sang with the {noun}",
    ),
    "sport": (
        "{name} trained for the {noun}", "the {noun} ended two to one", "we watched the {noun}", "{name} won at {noun}",
    ),
    "travel": (
        "{name} booked the {noun} to {place}", "the {noun} to {place} was late", "we forgot the {noun}",
        "{name} left with the {noun}",
    ),
    "weather": (
        "the {noun} stopped in {place}", "there will be {noun} on {day}", "{name} got caught in the {noun}",
        "we had {noun} all day",
    ),
}  # fmt: skip
_ANY_TOPIC = (
    "{name} remembered the {noun}", "the {noun} was in {place}", "nobody spoke of the {noun}", "{name} likes {noun}",
    "there was {noun} on {day}", "{name} and {other} talked about the {noun}",
)  # fmt: skip
_OUTRIGHT = (
    "{name} talked about {topic}", "{name} and {other} love {topic}", "there is a book about {topic}",
    "no {topic} without {name}",
)  # fmt: skip
_SMALL_TALK = (
    "{name} called on {day}", "{name} lives near {place}", "the door was open", "{name} read the letter",
    "nobody said a word", "we met {name} on {day}", "the house is old", "{name} asked {other}", "that was on {day}",
    "{name} waited for {other}",
)  # fmt: skip
_JOINS = (". ", ". ", ", and ", ", but ", "; ")


@dataclass(frozen=True)
class Example:
    """A text and the topics it touches, none of them included (sorted, without repetition)."""

    text: str
    labels: tuple[str, ...]
    key: world.Key


def compose(rng: random.Random, counts: tuple[int, ...] = (0, 1, 1, 1, 2, 2, 2, 3, 3)) -> Example:
    """A text with one of `counts` as its number of topics: rarely none."""
    topics = rng.sample(LABELS, rng.choice(counts))
    fragments = [_fragment(rng, topic) for topic in topics]
    parts = [text for text, _ in fragments] + [_filled(rng, rng.choice(_SMALL_TALK)) for _ in range(_talk(rng, topics))]
    rng.shuffle(parts)
    return Example(
        _joined(rng, parts), tuple(sorted(topics)), tuple(sorted(noun for _, noun in fragments)) or (parts[0],)
    )


def _talk(rng: random.Random, topics: list[str]) -> int:
    return rng.choice((0, 0, 1)) if topics else rng.choice((1, 2))


def _fragment(rng: random.Random, topic: str) -> tuple[str, str]:
    """A statement on the topic, and the word that it hangs on."""
    if rng.random() < 0.2:
        return _filled(rng, rng.choice(_OUTRIGHT)).replace("{topic}", topic), topic
    noun = rng.choice(_NOUNS[topic])
    # Half of the forms fit any topic, so that it is the noun that has to be known.
    form = rng.choice(rng.choice((_FORMS[topic], _ANY_TOPIC)))
    return _filled(rng, form).replace("{noun}", noun), noun


def _filled(rng: random.Random, form: str) -> str:
    name, other = rng.sample(world.FIRST_NAMES, 2)
    slots = {"{name}": name, "{other}": other, "{place}": rng.choice(world.PLACES), "{day}": rng.choice(world.DAYS)}
    for slot, word in slots.items():
        form = form.replace(slot, word)
    return form


def _joined(rng: random.Random, parts: list[str]) -> str:
    text = world.sentence(parts[0])
    for part in parts[1:]:
        join = rng.choice(_JOINS)
        text += join + (world.sentence(part) if join == ". " else part)
    return text + "."
